"""Merges Mamba caches with a history, asks for masks, and takes a row out again."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result

_SLOTS = 2
_LENGTHS = [1, 3]


def probe(target: Target) -> Result:
    """Red where rows are lost on the way into a batch or out of it."""
    kind = getattr(importlib.import_module(target.module), "MambaCache", None)
    operation = target.name.rpartition(".")[2]
    if not hasattr(kind, operation):
        raise NotApplicable("this release has no such caches, or does not batch them")
    cache_class: Any = kind
    batch = cache_class.merge([written(cache_class, row) for row in range(len(_LENGTHS))])
    problem = {"merge": of_merged, "extract": of_extracted}[operation](batch)
    return Result(bool(problem), problem or "the rows are what they were")


def written(kind: Any, number: int) -> Any:
    """A row whose states are all this number."""
    import mlx.core as mx

    cache = kind()
    for slot in range(_SLOTS):
        cache[slot] = mx.full((1, 1), number)
    return cache


def of_merged(batch: Any) -> str:
    """What is wrong with a batch: its states, or what it masks."""
    held = [state.reshape(-1).tolist() for state in batch.cache]
    if held != [list(range(len(_LENGTHS)))] * _SLOTS:
        return f"the batch holds {held}"
    longest = max(_LENGTHS)
    try:
        if batch.make_mask(longest) is not None:
            return "rows without padding are masked"
        batch.prepare(lengths=_LENGTHS)
        mask = batch.make_mask(longest).tolist()
    except ValueError as error:
        return str(error)
    wanted = [[i < length for i in range(longest)] for length in _LENGTHS]
    return "" if mask == wanted else f"mask of right padding {mask}, not {wanted}"


def of_extracted(batch: Any) -> str:
    """What is wrong with a row that leaves."""
    row = batch.extract(1)
    if type(row) is not type(batch):
        return f"the row is a {type(row).__name__}, its batch a {type(batch).__name__}"
    held = [state.tolist() for state in row.cache]
    if held != [[[1]]] * _SLOTS:
        return f"the row holds {held}"
    return "" if row.make_mask(1) is None else "the row is masked"
