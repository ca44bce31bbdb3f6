"""mlx-vlm on Metal: M-RoPE models read past the positions that rows of a batch share.

Why: On Metal, mlx-vlm rotates queries and keys with a kernel that expects one position per row and
    token. It ignores the shape of the positions: if several rows share one row of positions, it
    reads past their end. A batch of ``/v1/embeddings`` after a single text gets wrong embeddings
    for every row but the first. Without Metal the positions broadcast.
How: The kernel gets the positions of every row and token: they are broadcast, and copied when MLX
    makes them contiguous for the kernel. A wrong number of positions raises an error, as on a CPU.
Upstream: Affected from mlx-vlm 0.6.0, which has the kernel, to 0.7.10.
Retire when: The kernel uses the strides of the positions.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx, refusal


def lacks_positions(rope: Any, /, q: Any, position_ids: Any) -> bool:
    """Whether the kernel would read past the end of the positions."""
    return bool(
        getattr(rope, "fused_apply", False)
        and q.ndim == 4
        and position_ids.ndim in (2, 3)
        and position_ids.shape[-2:] != (q.shape[0], q.shape[2])
    )


def complete_positions(rope: Any, /, q: Any, position_ids: Any) -> Any:
    """The position ids (axes, rows, tokens) for queries (rows, heads, tokens, width)."""
    return expand(position_ids, q) if lacks_positions(rope, q, position_ids) else position_ids


def expand(position_ids: Any, q: Any) -> Any:
    shape = (*position_ids.shape[:-2], q.shape[0], q.shape[2])
    try:
        return mx.broadcast_to(position_ids, shape)
    except ValueError as error:
        had = f"position ids of shape {tuple(position_ids.shape)}"
        raise refusal(ValueError(f"{had} for {shape[-2]} rows of {shape[-1]} tokens")) from error


PATCH = Patch(
    id="metal-mrope",
    every_model=True,
    changes_solo=True,
    targets=argument(
        "mlx_vlm.models.rope_utils:MRoPERotaryEmbedding.apply_rotary",
        "position_ids",
        complete_positions,
        when=lacks_positions,
        fingerprint_of=("MRoPERotaryEmbedding.apply_rotary", "_mrope_apply_kernel"),
    ),
)
