"""Feeds a tiny model one token per row of a batch made by the release's engine."""

from typing import Any

from ....core.errors import is_refusal
from ....lab import engine
from ....probes.kit import NotApplicable, Result, Target, import_module, require, tiny, tiny_of


def probe(target: Target) -> Result:
    """Red if the engine or the model raises; green if it runs a batch, or refuses it."""
    function = require(target)
    in_engine = target.name == "_make_cache"
    model = tiny("mlx-vlm", "llama4") if in_engine else tiny_of(target)
    try:
        if in_engine:
            function(model.module, [0, 0])
        else:
            model.call([[1], [2]], make_batch(model))
    except Exception as error:
        if not is_refusal(error):
            raise
        return Result(False, str(error))
    return Result(False, "a batch runs")


def make_batch(model: Any) -> list[Any]:
    """Make the caches of two rows as the engine does, or as a host that has only KV caches."""
    try:
        return engine.batch_cache(model, [0, 0])
    except NotApplicable:
        own = model.make_cache()
        make = import_module(type(own[0]).__module__).BatchKVCache
        return [make([0, 0]) for _ in own]
