"""Llama 4: chunks of attention, and the scale that grows with the position, by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from .offsets import RowOffset, put_mask, put_views, read_view, with_parts

MODULE = "mlx_vlm.models.llama4.language"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """The batch's own mask, and caches whose offset is the rows', for those who ask them below."""
    put_mask(bound, shape[1])
    put_views(bound, offset)


def chunked(
    call: Callable[..., Any], model: Any, length: int, chunk: int, start: int = 0, offset: Any = 0
) -> Any:
    """Which keys are in a query's chunk: (length, keys), or (rows, 1, length, keys) of a batch."""
    if not isinstance(offset, RowOffset):
        return call(model, length, chunk, start, offset)
    import mlx.core as mx

    keys = (offset.rows - offset.columns)[:, None] + mx.arange(offset.columns + length)
    queries = keys[:, offset.columns :, None]
    keys = keys[:, None]
    # Padding has positions below 0, and sees itself: a query that sees nothing is no number.
    together = (keys // chunk == queries // chunk) & ((keys < 0) == (queries < 0))
    return (together & (keys <= queries))[:, None]


def attended(
    call: Callable[..., Any], attention: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """The attention's output; a batch's ropes take the rows' offsets as they are."""
    offset = read_view(cache)
    if offset is None:
        return call(attention, x, mask, cache)
    if attention.attn_temperature_tuning and not attention.use_rope:
        length, tuning = x.shape[1], (attention.floor_scale, attention.attn_scale)
        scaled = Scaled(attention.q_proj, offset.once(make_scales, length, *tuning))
        attention = with_parts(attention, q_proj=scaled, attn_temperature_tuning=False)
    return call(attention, x, mask, cache.__wrapped__)


class Scaled:
    """A projection of queries, scaled by position (rows, length, 1)."""

    def __init__(self, project: Callable[[Any], Any], scales: Any):
        self.project, self.scales = project, scales

    def __call__(self, x: Any) -> Any:
        """The queries (rows, length, width)."""
        queries = self.project(x)
        return (queries * self.scales).astype(queries.dtype)


def make_scales(offset: RowOffset, length: int, floor: float, scale: float) -> Any:
    """What the release computes of positions that all rows share, of each row's."""
    import mlx.core as mx

    grown = mx.log(mx.floor((offset.positions(length) + 1) / floor) + 1.0)
    return (grown * scale + 1.0)[..., None]


TARGETS = (
    Target(
        "mlx-vlm",
        MODULE,
        "LlamaModel.create_chunked_attention_mask",
        around(chunked),
        supports=True,
    ),
    Target("mlx-vlm", MODULE, "Attention.__call__", around(attended), supports=True),
)
