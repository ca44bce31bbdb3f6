"""Moondream 3: rotations, and the scales that grow with the position, by row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Target, around
from .offsets import (
    RowOffset,
    RowRope,
    put_mask,
    put_views,
    read_view,
    with_offset,
    with_parts,
)

MODULE = "mlx_vlm.models.moondream3.language"


def prepare(bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]) -> None:
    """The batch's own mask, and caches whose offset is the rows', for the attention."""
    put_mask(bound, shape[1])
    put_views(bound, offset)


def attended(
    call: Callable[..., Any], attention: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """The attention's output; a batch's is given parts that know the rows' offsets."""
    offset = read_view(cache)
    if offset is None:
        return call(attention, x, mask, cache)
    tau, rope = RowTau(attention.tau, offset), RowRope(attention.rope, offset.rows)
    return call(
        with_parts(attention, tau=tau, rope=rope), x, mask, with_offset(cache.__wrapped__, 0)
    )


class RowTau:
    """The scales of queries and values, by each row's own positions."""

    def __init__(self, tau: Callable[..., Any], offset: RowOffset):
        self.tau, self.offset = tau, offset

    def __call__(self, x: Any, positions: Any) -> tuple[Any, ...]:
        """Two arrays (rows, heads, length, 1), for ``x`` (rows, length, width).

        The release's own takes positions (length,) that all rows share: it gets the tokens as
        one row. ``positions`` count from 0 in each row, and are not looked at.
        """
        rows, length = x.shape[:2]
        own = self.offset.positions(length).reshape(-1)
        scales = self.tau(x.reshape(1, rows * length, -1), own)
        return tuple(one.reshape(-1, rows, length, 1).transpose(1, 0, 2, 3) for one in scales)


TARGETS = (Target("mlx-vlm", MODULE, "Attention.__call__", around(attended), supports=True),)
