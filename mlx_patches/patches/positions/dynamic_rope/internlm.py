"""InternLM 2 and 3: wrong output for every request, positions are doubled.

Why: Unless the config has a linear scaling, the layer builds its RoPE with a scale of 2, by which
    RoPE multiplies the positions. The models' dynamic scaling should not change positions: for
    texts longer than in training it changes the base of RoPE, by its own factor. There, RoPE also
    confuses the number of heads with the number of tokens.
How: The scale is 1, and for texts longer than in training the base grows by the config's factor.
    Without a dynamic scaling a layer gets MLX's own RoPE.
Upstream: mlx-lm 0.32.0 builds it by ``initialize_rope``. Not fixed in mlx-vlm 0.7.10.
Retire when: No supported release builds RoPE with a scale of 2.
"""

from typing import Any

from ....core.verbs import Function, Patch, after, family, mx, wrap


def set_rope(attention: Any, args: Any, /) -> None:
    rope, scaling = attention.rope, args.rope_scaling or {}
    if not hasattr(rope, "original_base"):  # another patch has replaced it
        return
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind == "dynamic":
        rope.scale, rope.factor = 1.0, scaling["factor"]
        return
    import mlx.nn as nn

    scale = 1 / scaling["factor"] if kind == "linear" else 1.0
    attention.rope = nn.RoPE(rope.dims, rope.traditional, rope.original_base, scale)


def rotate_by_length(call: Function, rope: Any, x: Any, offset: Any = 0) -> Any:
    """Rotate ``x`` (rows, heads, length, width) by the positions from ``offset``."""
    limit, factor = rope.max_position_embeddings, rope.factor
    end = max(offset + x.shape[-2], limit)
    growth = factor * end / limit - (factor - 1)
    base = rope.original_base * growth ** (rope.dims / (rope.dims - 2))
    return mx.fast.rope(
        x, rope.dims, traditional=rope.traditional, base=base, scale=1.0, offset=offset
    )


def may_grow(rope: Any, x: Any, offset: Any, /) -> bool:
    """Whether a text is longer than in training, or the release's RoPE assumes so."""
    if getattr(offset, "ndim", 0) or not hasattr(rope, "factor"):
        return False
    return bool(offset + max(x.shape[1], x.shape[-2]) > rope.max_position_embeddings)


_CALL = "DynamicNTKScalingRoPE.__call__"

PATCH = Patch(
    id="internlm-positions",
    every_model=True,
    wrong_solo="internlm2 internlm3",
    targets=(
        *after(family("internlm2 internlm3", "Attention.__init__"), set_rope),
        *wrap(family("internlm2 internlm3", _CALL), rotate_by_length, when=may_grow, supports=True),
    ),
    probe=".probe_internlm:probe",
)
