"""Feeds a tiny model a token in each row of a batch that the release's engine makes."""

from __future__ import annotations

from typing import Any

from ....core.errors import is_refusal
from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import require


def probe(target: Target) -> Result:
    """Red where the engine or the model raises; green where it reads a batch, or refuses it.

    Raises:
        NotApplicable: the release lacks the model, or its engine refuses the batch itself.
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
        cache = make_batch(model)
        if not of_engine:
            model.call([[1], [2]], cache)
    except Exception as error:
        if not is_refusal(error):
            raise
        return Result(False, str(error))
    return Result(False, "it reads a batch")


def make_batch(model: Any) -> list[Any]:
    """The caches of two rows; of rows that have a history where the engine refuses new ones."""
    from ....lab import engine

    try:
        return engine.batch_cache(model, [0, 0])
    except NotApplicable:
        rows = [model.make_cache() for _ in range(2)]
        for cache in rows:
            model.call([[1]], cache)
        return engine.merge(model, rows)
