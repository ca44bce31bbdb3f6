"""Ernie 4.5 VL: position ids of text are passed by the model's own argument."""

import inspect
from typing import Any

from ..._shared.arrays import mx
from ..._shared.row_calls import accepts_deltas, find_argument
from .offsets import (
    REFUSED,
    RowOffset,
    count_positions,
    find_deltas,
    is_text,
    put_argument,
    put_mask,
    put_views,
    start_deltas,
)


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Set position ids (rows, length, 3), the batch's mask, and caches whose offset is a number.

    Each call of a prompt with an image has the image's grid; without it, the model itself numbers
    the tokens as text.

    Returns:
        ``REFUSED`` for a prompt that is not only text.
    """
    rows, length = shape
    if length > 1 or offset == 0:
        if not is_text(bound):
            return REFUSED
        deltas = start_deltas(bound, offset, rows)
        model = bound.args[0]
        # Up to mlx-vlm 0.4.4 a row that leaves the batch decodes with the deltas on the model. A
        # single zero fits any number of rows.
        is_zero = offset == 0 or not getattr(find_deltas(bound, rows), "ndim", 0)
        only_zero = is_zero and not accepts_deltas(type(model).__call__)
        model._rope_deltas = mx.array(0) if only_zero else deltas[:, 0]
    else:
        deltas = find_deltas(bound, rows)
    if find_argument(bound, "position_ids") is None:
        own = count_positions(offset, length, deltas)
        put_argument(bound, "position_ids", mx.broadcast_to(own[..., None], (rows, length, 3)))
    put_mask(bound, length)
    put_views(bound, offset)
    return None
