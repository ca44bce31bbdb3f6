"""LongRoPE models fail in every batch: the rope compares an array of offsets to a limit.

Why
    The rope uses other frequencies once a text is longer than the model was first trained for:
    ``if offset + length > original_max_position_embeddings``. The offsets of a batch are an
    array, which has no truth value.
How
    Every row is rotated twice, with the frequencies of short and of long texts, and gets the
    result for its own length, the same bit for bit as alone. Nothing is read from the device. A
    scalar offset goes to the release's own code.
Upstream
    mlx-lm 0.30.2 has one set of frequencies.
Retire when
    No supported release is older than mlx-lm 0.30.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch
from ....core.verbs import wrap


def rotate_rows(call: Callable[..., Any], rope: Any, x: Any, offset: Any = 0) -> Any:
    """``x`` (rows, heads, length, width), rotated to the positions from ``offset`` on."""
    if not getattr(offset, "ndim", 0) or not hasattr(rope, "_short_freqs"):
        return call(rope, x, offset)
    import mlx.core as mx

    long = is_long(offset + x.shape[-2], rope.original_max_position_embeddings)
    return mx.where(
        long[:, None, None, None],
        rotate(x, offset, rope.dim, rope._long_scale, rope._long_freqs),
        rotate(x, offset, rope.dim, rope._short_scale, rope._short_freqs),
    )


def is_long(ends: Any, limit: int) -> Any:
    """Whether each row (rows,) has more tokens than the limit."""
    return ends > limit


def rotate(x: Any, offset: Any, dims: int, scale: float, freqs: Any) -> Any:
    """``x`` (rows, heads, length, width) with its first ``dims`` dimensions scaled and rotated."""
    import mlx.core as mx

    scaled = x.at[..., :dims].multiply(scale)
    return mx.fast.rope(
        scaled, dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=freqs
    )


PATCH = Patch(
    id="long-rope",
    severity="crash",
    every_model=True,
    summary="LongRoPE models in mlx-lm (Phi-3, Phi-MoE, MiniCPM3) crash in every batch",
    targets=wrap("mlx_lm.models.rope_utils:SuScaledRoPE.__call__", rotate_rows),
)
