"""Llama 4: attention chunks and position-dependent scales by row."""

import functools
from typing import Any

from ....core.arrays import mx
from ..._shared.parts import with_parts
from .offsets import BatchCall, RowOffset, with_row_rope


def prepare(call: BatchCall) -> None:
    """Set the batch's mask, and a decoder that uses the rows' offsets."""
    call.put_mask()
    layers = [
        with_parts(layer, self_attn=attend_by_row(layer.self_attn, call.offset, call.length))
        for layer in call.model.model.layers
    ]
    mask = functools.partial(mask_chunks, call.offset)
    call.put_decoder(layers=layers, create_chunked_attention_mask=mask)
    call.put_views()


def attend_by_row(attention: Any, offset: RowOffset, length: int) -> Any:
    if attention.use_rope:
        return with_row_rope(attention, offset.rows)
    if not attention.attn_temperature_tuning:
        return attention
    scales = offset.once(make_scales, length, attention.floor_scale, attention.attn_scale)

    def project(x: Any) -> Any:
        queries = attention.q_proj(x)
        return (queries * scales).astype(queries.dtype)

    return with_parts(attention, q_proj=project, attn_temperature_tuning=False)


def mask_chunks(rows: RowOffset, length: int, chunk: int, start: int = 0, offset: int = 0) -> Any:
    """The causal mask (rows, 1, length, keys) within each query's chunk."""
    columns = int(rows)
    keys = (rows.rows - columns)[:, None] + mx.arange(columns + length)
    queries = keys[:, columns:, None]
    keys = keys[:, None]
    # Padding has negative positions, and attends to itself: attending to nothing yields NaN.
    same_chunk = (keys // chunk == queries // chunk) & ((keys < 0) == (queries < 0))
    return (same_chunk & (keys <= queries))[:, None]


def make_scales(offset: RowOffset, length: int, floor: float, scale: float) -> Any:
    """The release's scales for each row's positions, (rows, length, 1)."""
    grown = mx.log(mx.floor((offset.positions(length) + 1) / floor) + 1.0)
    return (grown * scale + 1.0)[..., None]
