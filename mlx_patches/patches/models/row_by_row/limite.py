"""Limite: RoPE and a mask by row."""

from typing import Any

from ....core.verbs import Function, mx
from ..._shared.parts import with_offset, with_parts
from .offsets import BatchCall, RowOffset


def prepare(call: BatchCall) -> None:
    """Set attention that uses the rows' offsets; the model itself reads a plain number."""
    layers = [
        with_parts(layer, self_attn=attend_by_row(layer.self_attn, call.offset, call.length))
        for layer in call.model.model.layers
    ]
    call.put_decoder(layers=layers)
    call.put_views()


def attend_by_row(attention: Any, offset: RowOffset, length: int) -> Function:
    # Queries and keys have the tokens of all rows, (tokens, heads, width).
    own = offset.positions(length).reshape(-1)
    by_row = with_parts(attention, rotary=lambda q, k, positions: attention.rotary(q, k, own))
    return lambda x, values, positions, cache=None: by_row(
        x, values, positions, with_offset(cache, offset)
    )


def build_mask(build: Function, length: int, offset: Any, window: int | None, dtype: Any) -> Any:
    """The mask added to the scores: (length, keys), or (rows, 1, length, keys) for a batch."""
    if not isinstance(offset, RowOffset):
        return build(length, offset, window, dtype)
    return offset.once(mask_rows, build, length, window, dtype)


def mask_rows(
    offset: RowOffset, build: Function, length: int, window: int | None, dtype: Any
) -> Any:
    """The release's mask of the batch's columns, with each row's padding hidden from its tokens.

    Pad queries keep the release's mask: a query that attends to nothing is NaN.
    """
    columns = int(offset)
    padding = (columns - offset.rows)[:, None, None, None]
    keys = mx.arange(columns + length)
    queries = keys[columns:, None]
    hidden = (keys < padding) & (queries >= padding)
    return mx.where(hidden, mx.array(-mx.inf, dtype), build(length, columns, window, dtype))
