"""Extracts each row of a batch of recurrent caches, plain and in a list of caches."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx, require_names

_ROWS = 2
_SLOTS = 2


def probe(target: Target) -> Result:
    """Red if extracting a row raises, or returns another row."""
    batch_class: Any = getattr(module_of(target), "Batch", None)
    require_names(batch_class, "extract_cache")
    caches = import_module("mlx_lm.models.cache")
    states = caches.ArraysCache(_SLOTS)
    for slot in range(_SLOTS):
        states[slot] = mx.arange(_ROWS)[:, None]
    batch = SimpleNamespace(cache=[states, caches.CacheList(states, states)])
    for row in range(_ROWS):
        solo, in_list = batch_class.extract_cache(batch, row)
        for cache in (solo, *in_list.caches):
            seen = [state.tolist() for state in cache.cache]
            if seen != [[[row]]] * _SLOTS:
                return Result(True, f"row {row} holds {seen}")
    return Result(False, "every row holds its own states")
