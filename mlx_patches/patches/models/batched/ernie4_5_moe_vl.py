"""Ernie 4.5 VL: a decode step's positions through the model's own argument."""

from __future__ import annotations

import inspect
from typing import Any

from ..row_calls import find_argument
from .offsets import REFUSED, RowOffset, given_deltas, put_argument, put_mask, put_views


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Position ids (rows, 1, 3), the batch's own mask."""
    rows, length = shape
    if length > 1:
        return REFUSED
    if find_argument(bound, "position_ids") is None:
        import mlx.core as mx

        own = mx.maximum(offset.rows[:, None] + given_deltas(bound, rows), 0)
        put_argument(bound, "position_ids", mx.broadcast_to(own[..., None], (rows, 1, 3)))
    put_mask(bound, length)
    put_views(bound, offset)
    return None
