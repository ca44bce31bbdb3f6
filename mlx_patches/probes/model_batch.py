"""Compares a left-padded batch on a tiny model of the target's family with its rows alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result


def probe(target: Target) -> Result:
    """Red where the batch raises, or a row's logits differ from those alone."""
    from ..patches.models.recurrent_padding.probe import left

    return compared(target, left)


def whole(target: Target) -> Result:
    """The same with whole prompts: in chunks, some of these models are wrong even alone."""
    from ..patches.models.recurrent_padding.probe import PROMPTS, left

    return compared(target, lambda model: left(model, max(map(len, PROMPTS))))


def compared(target: Target, feed: Callable[[Any], list[list[Any]]]) -> Result:
    """Compare the logits of a batch that ``feed`` runs with those of its rows alone."""
    from ..lab import Family, NotBuilt, engine
    from ..lab.build import build
    from ..patches.models.recurrent_padding.probe import PROMPTS, TOLERANCE, alone, difference

    try:
        model = build(Family(target.distribution, target.module.split(".")[2]))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    if not has(model.module, target):
        raise NotApplicable(f"no part of the tiny model is a {target.name.partition('.')[0]}")
    try:
        engine.batch_cache(model, [0, 0])
    except Exception as error:
        raise NotApplicable(f"no cache for a batch of it: {engine.where(error)}") from None
    try:
        said = feed(model)
    except NotApplicable:
        raise
    except Exception as error:
        return Result(True, engine.where(error))
    worst = max(difference(said[i], alone(model, prompt)) for i, prompt in enumerate(PROMPTS))
    detail = f"largest difference {worst:.2g} of the logits' scale"
    return Result(not worst <= TOLERANCE, detail, worst)


def has(model: object, target: Target) -> bool:
    """Whether the model has a module of the target's class, or the target's function exists."""
    name, _, method = target.name.partition(".")
    if not method:
        return hasattr(sys.modules.get(target.module), name)
    modules = model.modules()  # type: ignore[attr-defined]
    kinds = {(type(one).__module__, type(one).__name__) for one in modules}
    return (target.module, name) in kinds
