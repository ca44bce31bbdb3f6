"""Limite: positions through the model's own argument, and a mask by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from .offsets import RowOffset, put_views, read_view

MODULE = "mlx_vlm.models.limite.language"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """Caches whose offset is the rows', for those who ask them below."""
    put_views(bound, offset)


def modelled(
    call: Callable[..., Any], model: Any, inputs: Any, cache: Any = None, positions: Any = None
) -> Any:
    """The decoder's output for token ids (rows, length), each row at its own positions."""
    offset = read_view(cache[0]) if cache else None
    if offset is not None and positions is None:
        positions = offset.positions(inputs.shape[1])
    return call(model, inputs, cache, positions)


def masked(
    call: Callable[..., Any], length: int, offset: Any, window: int | None, dtype: Any
) -> Any:
    """What is added to the scores: (length, keys), or (rows, 1, length, keys) of a batch."""
    if not isinstance(offset, RowOffset):
        return call(length, offset, window, dtype)
    return offset.once(mask_rows, call, length, window, dtype)


def mask_rows(
    offset: RowOffset, call: Callable[..., Any], length: int, window: int | None, dtype: Any
) -> Any:
    """The release's mask of the batch's columns, of which no row sees its padding.

    The padding's own queries see what they would without: a query that sees nothing is no number.
    """
    import mlx.core as mx

    shared = call(length, offset.columns, window, dtype)
    padding = (offset.columns - offset.rows)[:, None, None, None]
    keys = mx.arange(offset.columns + length)
    queries = keys[offset.columns :][:, None]
    hidden = (keys < padding) & (queries >= padding)
    return mx.where(hidden, mx.array(-mx.inf, dtype), shared)


TARGETS = (
    Target("mlx-vlm", MODULE, "LimiteModel.__call__", around(modelled), supports=True),
    Target("mlx-vlm", MODULE, "_causal_window_mask", around(masked), supports=True),
)
