"""XTC sampling cuts a batch's rows at one row's threshold.

Why
    XTC removes all tokens above a threshold except the least probable of them. Releases search
    for that token in the whole batch, so a row may lose all of its top choices.
How
    A batch is processed row by row, each row as if alone, with its own draw of whether XTC
    applies.
Upstream
    mlx-lm 0.32.0 searches in each row. Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release searches in the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import SAMPLERS, at


def applied(apply_xtc: Callable[..., Any], logits: Any, *args: Any, **kwargs: Any) -> Any:
    """The logits (rows, vocabulary), minus infinity for the top choices that are removed."""
    if not several(logits):
        return apply_xtc(logits, *args, **kwargs)
    import mlx.core as mx

    rows = (logits[row : row + 1] for row in range(logits.shape[0]))
    return mx.concatenate([apply_xtc(row, *args, **kwargs) for row in rows])


def several(logits: Any) -> bool:
    """Whether the logits have more than one row."""
    return bool(logits.ndim > 1 and logits.shape[0] > 1)


PATCH = Patch(
    id="xtc-rows",
    every_model=True,
    summary="XTC sampling cuts a batch's rows at one row's threshold",
    targets=at(SAMPLERS, {"apply_xtc": around(applied)}),
)
