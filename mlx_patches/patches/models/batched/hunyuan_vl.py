"""Hunyuan VL: a decode step is rotated by the table of each row's own position."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from .offsets import REFUSED, RowOffset, put_mask, put_views, read_view, with_parts

MODULE = "mlx_vlm.models.hunyuan_vl.language"
# The table of rotations is made again when it is too short, and then as long as these tokens.
_STEP = 256


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> Any:
    """The batch's own mask, and caches whose offset is the rows', for the attention."""
    attention = bound.args[0].model.layers[0].self_attn
    if shape[1] > 1 or not offset.columns or not attention.xdrope_section:
        return REFUSED
    put_mask(bound, shape[1])
    put_views(bound, offset)
    return None


def attended(
    call: Callable[..., Any],
    attention: Any,
    x: Any,
    mask: Any = None,
    cache: Any = None,
    position_ids: Any = None,
) -> Any:
    """The attention's output; a batch's step takes the way of a prompt, with positions by row.

    The way of a step has one table for all rows. Where all axes have one position, both ways
    rotate alike.
    """
    offset = read_view(cache)
    if offset is None:
        return call(attention, x, mask, cache, position_ids)
    import mlx.core as mx

    rows, length = x.shape[:2]
    own = offset.positions(length)[:, None]
    own = mx.broadcast_to(own, (rows, len(attention.xdrope_section), length))
    table = LongTable(attention.rotary_emb, offset.columns + length)
    return call(with_parts(attention, rotary_emb=table), x, mask, as_prompt(cache), own)


class LongTable:
    """A rotary embedding whose tables have at least ``length`` positions."""

    def __init__(self, embedding: Callable[..., Any], length: int):
        self.embedding, self.length = embedding, length

    def __call__(self, x: Any, seq_len: int) -> Any:
        """The cosines and sines, (positions, width) each."""
        return self.embedding(x, -(-max(self.length, seq_len) // _STEP) * _STEP)


def as_prompt(cache: Any) -> Any:
    """A view of a cache as one that has been fed nothing."""
    return _view()(cache.__wrapped__)


@functools.cache
def _view() -> Any:
    import wrapt  # not at start-up

    class Prompt(wrapt.ObjectProxy[Any]):
        offset = _idx = 0

    return Prompt


TARGETS = (Target("mlx-vlm", MODULE, "Attention.__call__", around(attended), supports=True),)
