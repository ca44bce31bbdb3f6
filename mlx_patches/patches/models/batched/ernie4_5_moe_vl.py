"""Ernie 4.5 VL: text gets position ids through the model's own argument."""

from __future__ import annotations

import inspect
from typing import Any

from ..row_calls import find_argument
from .offsets import (
    REFUSED,
    RowOffset,
    given_deltas,
    is_text,
    put_argument,
    put_mask,
    put_views,
    start_deltas,
)


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Set position ids (rows, length, 3), the batch's mask, and caches whose offset is a number.

    Returns:
        ``REFUSED`` for a prompt that is not text alone.
    """
    rows, length = shape
    import mlx.core as mx

    if length > 1:
        if not is_text(bound):
            return REFUSED
        deltas = start_deltas(bound, offset, rows)
        bound.args[0]._rope_deltas = deltas[:, 0]
    else:
        deltas = given_deltas(bound, rows)
    if find_argument(bound, "position_ids") is None:
        own = mx.maximum(offset.rows[:, None] + mx.arange(length) + deltas, 0)
        put_argument(bound, "position_ids", mx.broadcast_to(own[..., None], (rows, length, 3)))
    put_mask(bound, length)
    put_views(bound, offset)
    return None
