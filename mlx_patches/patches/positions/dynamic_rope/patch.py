"""InternLM and other models with dynamic NTK scaling crash in every batch.

Why: Dynamic NTK scaling changes the base of RoPE if a text is longer than in training: ``if length
    + offset > max_position_embeddings``, or ``max()`` of the two. The offsets of a batch are an
    array, which has no truth value.
How: Every row is rotated twice, with the usual base and with the base of its length, and the result
    of a solo run is used. The device is not read. A scalar offset is passed to the release's own
    code.
Upstream: mlx-lm 0.32.0 moves InternLM 2 to ``rope_utils``, whose RoPE has the same defect; not
    fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: RoPE of every supported release accepts an array of offsets.
"""

from typing import Any

from ....core.verbs import Function, Patch, family, mx, wrap


def rotate_internlm(call: Function, rope: Any, x: Any, offset: Any = 0) -> Any:
    """Rotate ``x`` (rows, heads, length, width) by the positions from ``offset``."""
    if not getattr(offset, "ndim", 0):
        return call(rope, x, offset)
    # InternLM uses the number of heads as the length, even for a single request, unless its RoPE
    # is repaired and has a factor.
    length = x.shape[-2] if hasattr(rope, "factor") else x.shape[1]
    factor = getattr(rope, "factor", rope.scale)
    return rotate_rows(rope, x, offset, offset + length, rope.original_base, rope.scale, factor)


def rotate_batch(call: Function, rope: Any, x: Any, offset: Any = 0) -> Any:
    if not getattr(offset, "ndim", 0):
        return call(rope, x, offset)
    return rotate_rows(rope, x, offset, offset + x.shape[-2], rope.base, 1.0, rope.factor)


def rotate_rows(
    rope: Any, x: Any, offset: Any, ends: Any, base: float, scale: float, factor: float
) -> Any:
    """Rotate ``x`` (rows, heads, length, width), each row by the base of its length.

    A row within the limit is bit-identical to MLX's own RoPE.
    """
    limit = rope.max_position_embeddings
    usual = mx.fast.rope(
        x, rope.dims, traditional=rope.traditional, base=base, scale=scale, offset=offset
    )
    bases = grow_bases(ends, base, factor, limit, rope.dims)
    half = rope.dims // 2
    speeds = mx.exp(mx.log(bases)[:, None] * (mx.arange(half) / -half))  # (rows, half)
    positions = scale * (offset[:, None] + mx.arange(x.shape[-2]))  # (rows, length)
    own = rotate(x, positions[..., None] * speeds[:, None], rope.traditional)
    return mx.where((ends > limit)[:, None, None, None], own, usual)


def grow_bases(ends: Any, base: float, factor: float, limit: int, dims: int) -> Any:
    """The bases (rows,) of rows past the limit; the values for other rows are not used."""
    growth = factor * mx.maximum(ends, limit) / limit - (factor - 1)
    return base * growth ** (dims / (dims - 2))


def rotate(x: Any, angles: Any, traditional: bool) -> Any:
    """Rotate ``x`` (rows, heads, length, width) by ``angles`` (rows, length, dims / 2).

    ``traditional`` pairs neighbouring dimensions; if not, the halves of the first ``dims`` are
    paired.
    """
    dims = 2 * angles.shape[-1]
    cos, sin = mx.cos(angles)[:, None], mx.sin(angles)[:, None]
    first, second = (
        (x[..., :dims:2], x[..., 1:dims:2])
        if traditional
        else (x[..., : dims // 2], x[..., dims // 2 : dims])
    )
    pair = [first * cos - second * sin, first * sin + second * cos]
    rotated = mx.stack(pair, -1).flatten(-2) if traditional else mx.concatenate(pair, -1)
    return mx.concatenate([rotated.astype(x.dtype), x[..., dims:]], -1)


_CALL = "DynamicNTKScalingRoPE.__call__"

PATCH = Patch(
    id="dynamic-rope",
    severity="crash",
    every_model=True,
    targets=(
        *wrap(family("internlm2 internlm3", _CALL), rotate_internlm),
        *wrap(f"mlx_lm.models.rope_utils:{_CALL}", rotate_batch),
    ),
)
