"""Llama 3.2 Vision: RoPE by row, and cross-attention that masks padding."""

from typing import Any

from ....core.arrays import mx
from ..._shared.parts import with_offset, with_parts
from .offsets import BatchCall, RowOffset, with_row_rope

STATES, STATES_MASK = "cross_attention_states", "cross_attention_mask"


def prepare(call: BatchCall) -> None:
    """Set the batch's masks, and self-attention that uses the rows' offsets."""
    call.put_mask()
    is_text = call.get(STATES) is None and call.get(STATES_MASK) is None
    if is_text and call.length > 1:
        call.put(STATES_MASK, build_text_mask(call.offset, call.length))
    decoder = call.model.model
    crossing = set(decoder.config.cross_attention_layers)
    layers = [
        layer
        if index in crossing
        else with_parts(layer, self_attn=with_row_rope(layer.self_attn, call.offset.rows))
        for index, layer in enumerate(decoder.layers)
    ]
    call.put_decoder(layers=layers)
    views = [
        # Cross-attention reads the offset only to check whether the cache has an image.
        with_offset(layer, int(layer.keys is not None if index in crossing else call.offset))
        for index, layer in enumerate(call.get("cache"))
    ]
    call.put("cache", views)


def build_text_mask(offset: RowOffset, length: int) -> Any:
    """A mask (rows, 1, length, length) that hides a row's padding from the chunk's tokens.

    Without an image, the release's cross-attention attends within the chunk of text. Padding
    attends to everything: a query that attends to nothing is NaN.
    """
    text = offset.rows[:, None] + mx.arange(length) >= 0
    return (text[:, None] | ~text[:, :, None])[:, None]
