"""LongRoPE models die in every batch: the rope asks whether one text is long.

Why
    The rope takes other frequencies once a text is longer than the model was first trained for:
    ``if offset + length > original_max_position_embeddings``. The offsets of a batch are an
    array, which has no truth value.
How
    While all rows agree, the comparison sees the largest of them. Where they do not, rows are
    rotated one by one, each with its own frequencies, as they would be alone.
Upstream
    mlx-lm 0.30.2 asks no more: it has one set of frequencies.
Retire when
    No supported release is older than mlx-lm 0.30.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from .dynamic_rope import counted


def rotated(call: Callable[..., Any], rope: Any, x: Any, offset: Any = 0) -> Any:
    """``x`` (rows, heads, length, width), rotated to the positions from ``offset`` on."""
    if not getattr(offset, "ndim", 0):
        return call(rope, x, offset)
    import mlx.core as mx

    rows = offset.tolist()
    limit = rope.original_max_position_embeddings - x.shape[-2]
    if len({row > limit for row in rows}) == 1:
        return call(rope, x, counted(offset, max(rows)))
    return mx.concatenate([call(rope, x[i : i + 1], row) for i, row in enumerate(rows)])


PATCH = Patch(
    id="long-rope",
    summary="LongRoPE models die in every batch: the rope takes the rows' offsets for one number",
    targets=(
        Target("mlx-lm", "mlx_lm.models.rope_utils", "SuScaledRoPE.__call__", around(rotated)),
    ),
    probe="mlx_patches.probes.long_rope:probe",
    module=__name__,
)
