"""Merges rows that keep their first tokens, and decodes past each row's window."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result
from .offset_alias import cache_of

WINDOW, KEEP = 8, 2
_LENGTHS = (3, 8, 13)
_STEPS = 2 * WINDOW


def probe(target: Target) -> Result:
    """Red where a row attends to other tokens than alone."""
    import mlx.core as mx

    caches = importlib.import_module(target.module)
    kind = cache_of(target)
    if not hasattr(kind, "merge"):
        raise NotApplicable("this release does not merge caches")
    for one_piece in (False, True):
        rows = [row_of(caches, length, one_piece) for length in _LENGTHS]
        batch = kind.merge([row_of(caches, length, one_piece) for length in _LENGTHS])
        for step in range(1, _STEPS):
            new = mx.array([length + step for length in _LENGTHS])[:, None, None, None]
            mask = batch.make_mask(1)
            held = batch.update_and_fetch(new * 1.0, new * 1.0)[0]
            for number, row in enumerate(rows):
                token = new[number : number + 1] * 1.0
                wanted = sorted(row.update_and_fetch(token, token)[0].reshape(-1).tolist())
                keys, on = held[number].reshape(-1).tolist(), mask[number].reshape(-1).tolist()
                seen = sorted(key for key, attended in zip(keys, on, strict=True) if attended)
                if seen != wanted:
                    return Result(True, f"{_LENGTHS[number]}+{step} tokens: {seen}, not {wanted}")
    return Result(False, "each row sees its first tokens and its newest")


def row_of(caches: Any, length: int, one_piece: bool) -> Any:
    """Make a row that was fed tokens 1, 2, ... in one piece or one by one."""
    import mlx.core as mx

    row = caches.RotatingKVCache(max_size=WINDOW, keep=KEEP)
    tokens = mx.arange(1.0, length + 1).reshape(1, 1, length, 1)
    for piece in [tokens] if one_piece else mx.split(tokens, length, axis=2):
        row.update_and_fetch(piece, piece)
    return row
