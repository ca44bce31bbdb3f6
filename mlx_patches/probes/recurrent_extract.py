"""Takes each row out of a batch of recurrent caches, and of a list of them."""

from __future__ import annotations

import importlib

from .._patch import Target
from . import NotApplicable, Result
from .offset_alias import cache_of

_ROWS = 2
_SLOTS = 2


def probe(target: Target) -> Result:
    """Red where a row cannot be taken out, or is not the one that was asked for."""
    import mlx.core as mx

    caches = importlib.import_module(target.module)
    if not hasattr(caches.BatchKVCache, "extract"):
        raise NotApplicable("the release takes no row out of any batch")
    batch = states = caches.ArraysCache(_SLOTS)
    for slot in range(_SLOTS):
        states[slot] = mx.arange(_ROWS)[:, None]
    kind = cache_of(target)
    if kind is caches.CacheList:
        batch = kind(states, states)
    for row in range(_ROWS):
        try:
            taken = batch.extract(row)
        except AttributeError as error:
            return Result(True, str(error))
        for cache in getattr(taken, "caches", (taken,)):
            seen = [state.tolist() for state in cache.cache]
            if seen != [[[row]]] * _SLOTS:
                return Result(True, f"row {row} holds {seen}")
    return Result(False, "every row holds its own states")
