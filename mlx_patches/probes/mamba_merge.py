"""Merges recurrent caches with a history, and asks for the masks of what comes next."""

from __future__ import annotations

import importlib

from .._patch import Target
from . import NotApplicable, Result

_SLOTS = 2
_LENGTHS = [1, 3]


def probe(target: Target) -> Result:
    """Red where the batch gives no mask, or takes text for padding."""
    import mlx.core as mx

    caches = importlib.import_module(target.module)
    kind = getattr(caches, "MambaCache", None)
    if kind is None or not hasattr(kind, "merge"):
        raise NotApplicable("this release does not merge such caches")
    rows = [kind(), kind()]
    for number, row in enumerate(rows):
        for slot in range(_SLOTS):
            row[slot] = mx.full((1, 2), number)
    batch = kind.merge(rows)
    held = [state[:, 0].tolist() for state in batch.cache]
    if held != [[0, 1]] * _SLOTS:
        return Result(True, f"the batch holds {held}")
    try:
        if batch.make_mask(max(_LENGTHS)) is not None:
            return Result(True, "rows without padding are masked")
        batch.prepare(lengths=_LENGTHS)
        mask = batch.make_mask(max(_LENGTHS)).tolist()
    except (AttributeError, ValueError) as error:
        return Result(True, str(error))
    wanted = [[i < length for i in range(max(_LENGTHS))] for length in _LENGTHS]
    if mask != wanted:
        return Result(True, f"mask of right padding {mask}, not {wanted}")
    return Result(False, "the batch masks its right padding alone")
