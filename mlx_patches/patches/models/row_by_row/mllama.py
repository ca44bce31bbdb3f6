"""Llama 3.2 Vision: RoPE by row, and cross-attention that masks padding."""

import inspect
from typing import Any

from ..._shared.arrays import mx
from ..._shared.parts import with_offset, with_parts
from ..._shared.row_calls import find_argument
from .offsets import RowOffset, put_argument, put_decoder, put_mask, with_row_rope

STATES, STATES_MASK = "cross_attention_states", "cross_attention_mask"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Set the batch's masks, and self-attention that uses the rows' offsets."""
    put_mask(bound, shape[1])
    is_text = find_argument(bound, STATES) is None and find_argument(bound, STATES_MASK) is None
    if is_text and shape[1] > 1:
        put_argument(bound, STATES_MASK, build_text_mask(offset, shape[1]))
    decoder = bound.args[0].model
    crossing = set(decoder.config.cross_attention_layers)
    layers = [
        layer
        if index in crossing
        else with_parts(layer, self_attn=with_row_rope(layer.self_attn, offset.rows))
        for index, layer in enumerate(decoder.layers)
    ]
    put_decoder(bound, layers=layers)
    views = [
        # Cross-attention reads the offset only to check whether the cache has an image.
        with_offset(layer, int(layer.keys is not None if index in crossing else offset))
        for index, layer in enumerate(find_argument(bound, "cache"))
    ]
    put_argument(bound, "cache", views)


def build_text_mask(offset: RowOffset, length: int) -> Any:
    """A mask (rows, 1, length, length) that hides a row's padding from the chunk's tokens.

    Without an image, the release's cross-attention attends within the chunk of text. Padding
    attends to everything: a query that attends to nothing is NaN.
    """
    text = offset.rows[:, None] + mx.arange(length) >= 0
    return (text[:, None] | ~text[:, :, None])[:, None]
