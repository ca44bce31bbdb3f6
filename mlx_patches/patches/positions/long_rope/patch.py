"""LongRoPE models in mlx-lm (Phi-3, Phi-MoE, MiniCPM3) crash in every batch.

Why: RoPE uses other frequencies for texts longer than the original context: ``if offset + length >
    original_max_position_embeddings``. The offsets of a batch are an array, which has no truth
    value.
How: Every row is rotated twice, with the frequencies of short and of long texts, and the result for
    its length is used, which is bit-identical to that of a solo run. The device is not read. A
    scalar offset is passed to the release's own code.
Upstream: mlx-lm 0.30.2 has one set of frequencies.
Retire when: No supported release is older than mlx-lm 0.30.2.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, wrap


def rotate_rows(call: Function, rope: Any, x: Any, offset: Any = 0) -> Any:
    """Rotate ``x`` (rows, heads, length, width) by the positions from ``offset``."""
    if not getattr(offset, "ndim", 0) or not hasattr(rope, "_short_freqs"):
        return call(rope, x, offset)
    long = is_long(offset + x.shape[-2], rope.original_max_position_embeddings)
    return mx.where(
        long[:, None, None, None],
        rotate(x, offset, rope.dim, rope._long_scale, rope._long_freqs),
        rotate(x, offset, rope.dim, rope._short_scale, rope._short_freqs),
    )


def is_long(ends: Any, limit: int) -> Any:
    return ends > limit


def rotate(x: Any, offset: Any, dims: int, scale: float, freqs: Any) -> Any:
    """Scale and rotate the first ``dims`` dimensions of ``x`` (rows, heads, length, width)."""
    scaled = x.at[..., :dims].multiply(scale)
    return mx.fast.rope(
        scaled, dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=freqs
    )


PATCH = Patch(
    id="long-rope",
    severity="crash",
    every_model=True,
    targets=wrap("mlx_lm.models.rope_utils:SuScaledRoPE.__call__", rotate_rows),
)
