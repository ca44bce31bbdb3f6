"""Limite: rotations and a mask by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..._shared.parts import with_offset, with_parts
from .offsets import RowOffset, put_decoder, put_views


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Set attention that knows the rows' offsets; the model itself reads a plain number."""
    layers = [
        with_parts(layer, self_attn=attend_by_row(layer.self_attn, offset, shape[1]))
        for layer in bound.args[0].model.layers
    ]
    put_decoder(bound, layers=layers)
    put_views(bound, offset)


def attend_by_row(attention: Any, offset: RowOffset, length: int) -> Callable[..., Any]:
    """The call of an attention whose rotations and mask are by row."""
    # Queries and keys are of the tokens of all rows, (tokens, heads, width).
    own = offset.positions(length).reshape(-1)
    rotated = with_parts(attention, rotary=lambda q, k, positions: attention.rotary(q, k, own))
    return lambda x, values, positions, cache=None: rotated(
        x, values, positions, with_offset(cache, offset)
    )


def masked(
    call: Callable[..., Any], length: int, offset: Any, window: int | None, dtype: Any
) -> Any:
    """The mask added to the scores: (length, keys), or (rows, 1, length, keys) for a batch."""
    if not isinstance(offset, RowOffset):
        return call(length, offset, window, dtype)
    return offset.once(mask_rows, call, length, window, dtype)


def mask_rows(
    offset: RowOffset, call: Callable[..., Any], length: int, window: int | None, dtype: Any
) -> Any:
    """The release's mask over the batch's columns, with each row's padding hidden from its tokens.

    Queries at padding keep the release's mask: a query that attends to nothing is NaN.
    """
    import mlx.core as mx

    columns = int(offset)
    padding = (columns - offset.rows)[:, None, None, None]
    keys = mx.arange(columns + length)
    queries = keys[columns:, None]
    hidden = (keys < padding) & (queries >= padding)
    return mx.where(hidden, mx.array(-mx.inf, dtype), call(length, columns, window, dtype))
