"""Cohere Compass: a decode step's positions through the model's own argument."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from ..row_calls import find_argument
from .offsets import REFUSED, RowOffset, given_deltas, put_argument


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """Position ids (rows, 1), or (3, rows, 1) of M-RoPE; attention that takes all rows at once."""
    rows, length = shape
    if length > 1:
        return REFUSED
    if find_argument(bound, "position_ids") is None:
        import mlx.core as mx

        own = mx.maximum(offset.rows[:, None] + given_deltas(bound, rows), 0)
        if bound.args[0].model.rotary_emb.position_selector is not None:
            own = mx.broadcast_to(own[None], (3, rows, 1))
        put_argument(bound, "position_ids", own)
    views = [with_mask_alone(layer, offset) for layer in find_argument(bound, "cache")]
    put_argument(bound, "cache", views)
    return None


def with_mask_alone(cache: Any, offset: int) -> Any:
    """A view of a cache that tells of its padding by its mask alone.

    By ``left_padding`` the attention cuts each row out, with two device reads a layer.
    """
    return _view()(cache, offset)


@functools.cache
def _view() -> Any:
    import wrapt  # not at start-up

    class MaskAlone(wrapt.ObjectProxy[Any]):
        left_padding = None

        def __init__(self, cache: Any, offset: int):
            super().__init__(cache)
            self._self_offset = offset

        @property
        def offset(self) -> int:
            return self._self_offset

    return MaskAlone
