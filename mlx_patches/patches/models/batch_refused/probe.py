"""Feeds a tiny model a token in each row of a batch that the release's engine makes."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.errors import is_refusal
from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import require


def probe(target: Target) -> Result:
    """Red where the engine or the model raises; green where it reads a batch, or refuses it.

    Raises:
        NotApplicable: the release lacks the model.
    """
    from ....lab import Family, NotBuilt
    from ....lab.build import build

    require(target)
    of_engine = target.name == "_make_cache"
    family = "llama4" if of_engine else target.module.split(".")[2]
    try:
        model = build(Family(target.distribution, family))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    try:
        if of_engine:
            importlib.import_module(target.module)._make_cache(model.module, [0, 0])
        else:
            model.call([[1], [2]], make_batch(model))
    except Exception as error:
        if not is_refusal(error):
            raise
        return Result(False, str(error))
    return Result(False, "it reads a batch")


def make_batch(model: Any) -> list[Any]:
    """The caches of two rows: the engine's, or those of a host that knows only attention."""
    from ....lab import engine

    try:
        return engine.batch_cache(model, [0, 0])
    except NotApplicable:
        own = model.make_cache()
        make = importlib.import_module(type(own[0]).__module__).BatchKVCache
        return [make([0, 0]) for _ in own]
