"""Ernie 4.5 VL: position ids of text are passed by the model's own argument."""

from typing import Any

from ....core.arrays import mx
from ..._shared.row_calls import accepts_deltas
from .offsets import REFUSED, BatchCall, count_positions


def prepare(call: BatchCall) -> Any:
    """Set position ids (rows, length, 3), the batch's mask, and caches whose offset is a number.

    Each call of a prompt with an image has the image's grid; without it, the model itself numbers
    the tokens as text. Returns ``REFUSED`` for a prompt that is not only text.
    """
    if call.length > 1 or call.offset == 0:
        if not call.is_text():
            return REFUSED
        deltas, model = call.start_deltas(), call.model
        # Up to mlx-vlm 0.4.4 a row that leaves the batch decodes with the deltas on the model. A
        # single zero fits any number of rows.
        is_zero = call.offset == 0 or not getattr(call.find_deltas(), "ndim", 0)
        only_zero = is_zero and not accepts_deltas(type(model).__call__)
        model._rope_deltas = mx.array(0) if only_zero else deltas[:, 0]
    else:
        deltas = call.find_deltas()
    if call.get("position_ids") is None:
        own = count_positions(call.offset, call.length, deltas)
        call.put("position_ids", mx.broadcast_to(own[..., None], (*call.shape, 3)))
    call.put_mask()
    call.put_views()
    return None
