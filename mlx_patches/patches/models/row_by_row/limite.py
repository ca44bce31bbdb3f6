"""Limite: rotations and a mask by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from ..._shared.parts import with_offset, with_parts
from .offsets import RowOffset, put_layers, put_views

MODULE = "mlx_vlm.models.limite.language"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Set attention that knows the rows' offsets; the model itself reads a plain number."""
    layers = [
        with_parts(layer, self_attn=Attention(layer.self_attn, offset, shape[1]))
        for layer in bound.args[0].model.layers
    ]
    put_layers(bound, "layers", layers)
    put_views(bound, offset)


class Attention:
    """An attention whose rotations and mask are by row."""

    def __init__(self, attention: Any, offset: RowOffset, length: int):
        rotary = Rotary(attention.rotary, offset, length)
        self.attention, self.offset = with_parts(attention, rotary=rotary), offset

    def __call__(self, x: Any, values: Any, positions: Any, cache: Any = None) -> Any:
        """Take the arguments of the release's attention; returns its (rows, length, width)."""
        return self.attention(x, values, positions, with_offset(cache, self.offset))


class Rotary:
    """A rotary embedding that rotates tokens by their rows' own positions."""

    def __init__(self, rotary: Callable[..., Any], offset: RowOffset, length: int):
        self.rotary, self.own = rotary, offset.positions(length).reshape(-1)

    def __call__(self, q: Any, k: Any, positions: Any) -> Any:
        """Rotate queries and keys (tokens of all rows, heads, width); ``positions`` is ignored."""
        return self.rotary(q, k, self.own)


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


TARGETS = (Target("mlx-vlm", MODULE, "_causal_window_mask", around(masked), supports=True),)
