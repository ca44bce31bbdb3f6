"""Llama 3.2 Vision: rotations by row, and cross-attention that sees no padding."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from ..row_calls import find_argument
from .offsets import (
    RowOffset,
    RowRope,
    put_argument,
    put_mask,
    read_view,
    with_offset,
    with_parts,
)

MODULE = "mlx_vlm.models.mllama.language"
STATES, STATES_MASK = "cross_attention_states", "cross_attention_mask"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """The masks of a batch, and caches whose offset is the rows'."""
    put_mask(bound, shape[1])
    alone = find_argument(bound, STATES) is None and find_argument(bound, STATES_MASK) is None
    if alone and shape[1] > 1:
        put_argument(bound, STATES_MASK, text_mask(offset, shape[1]))
    crossing = set(bound.args[0].model.config.cross_attention_layers)
    views = [
        # Its offset is only asked whether the cache holds an image.
        with_offset(layer, int(layer.keys is not None) if index in crossing else offset)
        for index, layer in enumerate(find_argument(bound, "cache"))
    ]
    put_argument(bound, "cache", views)


def text_mask(offset: RowOffset, length: int) -> Any:
    """Which of a piece's tokens are none of the row's padding (rows, 1, length, length).

    Without an image the release attends from a piece of text to the same piece. Padding sees
    all: a query that sees nothing is no number.
    """
    import mlx.core as mx

    text = offset.rows[:, None] + mx.arange(length) >= 0
    return (text[:, None] | ~text[:, :, None])[:, None]


def attended(
    call: Callable[..., Any], attention: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """The self-attention's output, a batch's rotated from the rows' offsets on."""
    offset = read_view(cache)
    if offset is not None:
        attention = with_parts(attention, rope=RowRope(attention.rope, offset.rows))
    return call(attention, x, mask, cache)


TARGETS = (
    Target("mlx-vlm", MODULE, "MllamaTextSelfAttention.__call__", around(attended), supports=True),
)
