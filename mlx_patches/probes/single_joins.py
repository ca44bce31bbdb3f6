"""Has the release's batch generator take in a prompt while others decode."""

from __future__ import annotations

import importlib
from typing import Any

from .._patch import Target
from . import NotApplicable, Result

# A family that every release gets right in a batch.
_FAMILY = "paligemma"
_PROMPTS = ([5, 9, 2, 7], [8, 6, 10])
_TOKENS = 12


def probe(target: Target) -> Result:
    """Red where the generator dies, or a row says something else than alone."""
    return _lists(target) if target.name == "_extend_cache" else _prompts(target)


def _lists(target: Target) -> Result:
    """Two batches whose layers keep lists of caches."""
    import mlx.core as mx

    extend: Any = getattr(importlib.import_module(target.module), target.name)
    caches = importlib.import_module("mlx_vlm.models.cache")
    if not hasattr(caches, "CacheList"):
        caches = importlib.import_module("mlx_lm.models.cache")
    batches = []
    for batch, padding in enumerate(([2, 0], [1, 0])):
        layer = caches.CacheList(caches.BatchKVCache(padding))
        rows = mx.array([10.0 * batch + row for row in range(2)])
        fed = mx.broadcast_to(rows[:, None, None, None], (2, 1, 4 - batch, 2))
        layer[0].update_and_fetch(fed, fed)
        batches.append([layer])
    joined = extend(*batches)[0][0]
    for row, (number, length) in enumerate(((0, 2), (1, 4), (10, 2), (11, 3))):
        held = joined.extract(row)
        if held.offset != length or held.keys[0, 0, :length, 0].tolist() != [number] * length:
            return Result(True, f"row {row} holds something else than before")
    return Result(False, "every row holds what it held before")


def _prompts(target: Target) -> Result:
    """A prompt that joins while a single other one decodes."""
    from ..lab import EXACT, Family, NotBuilt, engine
    from ..lab.build import build
    from ..lab.compare import spoken
    from ..lab.scenarios import alone

    try:
        model = build(Family(target.distribution, _FAMILY))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    first, late = _PROMPTS
    try:
        said = engine.generate(model, [first], late, _TOKENS)
    except NotApplicable:
        raise
    except Exception as error:
        return Result(True, engine.where(error))
    cell = spoken(said, [alone(model, prompt, _TOKENS) for prompt in _PROMPTS], EXACT)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
