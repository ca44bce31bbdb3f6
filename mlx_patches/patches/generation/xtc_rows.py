"""XTC sampling cuts a batch's rows at one row's threshold.

Why
    XTC leaves out the top choices but the least probable of those above a threshold. That one
    is looked for in the whole batch, so a row may lose all of its top choices to another's.
How
    A batch is sampled row by row, each as alone, with its own draw of whether XTC applies.
Upstream
    mlx-lm 0.32.0 looks in each row. Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release looks in the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def applied(apply_xtc: Callable[..., Any], logits: Any, *args: Any, **kwargs: Any) -> Any:
    """The logits (rows, vocabulary), those of the top choices left out at minus infinity."""
    if not several(logits):
        return apply_xtc(logits, *args, **kwargs)
    import mlx.core as mx

    rows = (logits[row : row + 1] for row in range(logits.shape[0]))
    return mx.concatenate([apply_xtc(row, *args, **kwargs) for row in rows])


def several(logits: Any) -> bool:
    """Whether there is more than one row."""
    return bool(logits.ndim > 1 and logits.shape[0] > 1)


PATCH = Patch(
    id="xtc-rows",
    summary="XTC sampling cuts a batch's rows at one row's threshold",
    targets=tuple(
        Target(distribution, f"{package}.sample_utils", "apply_xtc", around(applied))
        for distribution, package in (("mlx-lm", "mlx_lm"), ("mlx-vlm", "mlx_vlm"))
    ),
    probe="mlx_patches.probes.xtc_rows:probe",
    module=__name__,
)
