"""On Metal, Qwen-VL models read positions of other memory where rows share their positions.

Why
    mlx-vlm rotates queries and keys with a kernel that takes a position for each row and token. It
    ignores the shape of the positions: where they have one row for several, it reads behind them.
    A batch that ``/v1/embeddings`` gets after a single text has other embeddings for every row but
    the first. Elsewhere than on Metal the positions broadcast.
How
    The kernel gets positions of every row and token: they are broadcast, and copied where MLX makes
    them contiguous for the kernel. Positions of another number of tokens are refused by an error,
    as on a CPU.
Upstream
    Affected from mlx-vlm 0.6.0, which has the kernel, to 0.7.10.
Retire when
    The kernel uses the strides of the positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.errors import refusal
from ....core.patch import Patch, Target, around


def lacks_positions(rope: Any, q: Any, k: Any, position_ids: Any, **options: Any) -> bool:
    """Whether the kernel would read positions that are not there."""
    return bool(
        getattr(rope, "fused_apply", False)
        and q.ndim == 4
        and position_ids.ndim in (2, 3)
        and position_ids.shape[-2:] != (q.shape[0], q.shape[2])
    )


def rotated(
    call: Callable[..., Any], rope: Any, q: Any, k: Any, position_ids: Any, **options: Any
) -> Any:
    """Rotate q and k (rows, heads, tokens, width) by position ids (axes, rows, tokens)."""
    if lacks_positions(rope, q, k, position_ids):
        position_ids = whole(position_ids, q)
    return call(rope, q, k, position_ids, **options)


def whole(position_ids: Any, q: Any) -> Any:
    """The position ids of every row and token."""
    import mlx.core as mx

    shape = (*position_ids.shape[:-2], q.shape[0], q.shape[2])
    try:
        return mx.broadcast_to(position_ids, shape)
    except ValueError as error:
        had = f"position ids of shape {tuple(position_ids.shape)}"
        raise refusal(ValueError(f"{had} for {shape[-2]} rows of {shape[-1]} tokens")) from error


PATCH = Patch(
    id="metal-mrope",
    every_model=True,
    changes_alone=True,
    summary="mlx-vlm on Metal: M-RoPE models use wrong memory if rows of a batch share positions",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.rope_utils",
            "MRoPERotaryEmbedding.apply_rotary",
            around(rotated),
            when=lacks_positions,
            fingerprint_of=("MRoPERotaryEmbedding.apply_rotary", "_mrope_apply_kernel"),
        ),
    ),
)
