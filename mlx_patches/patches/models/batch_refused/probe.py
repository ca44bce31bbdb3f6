"""Feeds a tiny model a token in each row of a batch that the release's engine makes."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.errors import is_refusal
from ....core.patch import Target
from ....lab import engine
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny, tiny_of
from ....probes.fixtures import require


def probe(target: Target) -> Result:
    """Red where the engine or the model raises; green where it reads a batch, or refuses it.

    Raises:
        NotApplicable: the release lacks the model.
    """
    named = require(target)
    of_engine = target.name == "_make_cache"
    model = tiny("mlx-vlm", "llama4") if of_engine else tiny_of(target)
    try:
        if of_engine:
            named(model.module, [0, 0])
        else:
            model.call([[1], [2]], make_batch(model))
    except Exception as error:
        if not is_refusal(error):
            raise
        return Result(False, str(error))
    return Result(False, "it reads a batch")


def make_batch(model: Any) -> list[Any]:
    """The caches of two rows: the engine's, or those of a host that knows only attention."""
    try:
        return engine.batch_cache(model, [0, 0])
    except NotApplicable:
        own = model.make_cache()
        make = importlib.import_module(type(own[0]).__module__).BatchKVCache
        return [make([0, 0]) for _ in own]
