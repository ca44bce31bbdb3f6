"""InternLM 2 and 3 double the position of every token.

Why
    The layer gives its rope a scale of 2 unless the config has a linear scaling, and the rope
    multiplies the positions by it. The models' dynamic scaling does not change positions: past the
    length of training it changes the base of the rotation, by its own factor. The rope also
    confuses the number of heads with the number of tokens there.
How
    The scale is 1, and the base past the length of training grows by the config's factor. Without
    a dynamic scaling a layer gets MLX's own rope.
Upstream
    mlx-lm 0.32.0 builds the rope by ``initialize_rope``. Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release builds the rope with a scale of 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch
from ....core.verbs import after, family, wrap


def set_rope(attention: Any, args: Any, /) -> None:
    """Give an attention layer the rope of its config."""
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


def rotate_by_length(call: Callable[..., Any], rope: Any, x: Any, offset: Any = 0) -> Any:
    """``x`` (rows, heads, length, width), rotated to the positions from ``offset`` on."""
    if not may_grow(rope, x, offset):
        return call(rope, x, offset)
    import mlx.core as mx

    limit, factor = rope.max_position_embeddings, rope.factor
    end = max(offset + x.shape[-2], limit)
    growth = factor * end / limit - (factor - 1)
    base = rope.original_base * growth ** (rope.dims / (rope.dims - 2))
    return mx.fast.rope(
        x, rope.dims, traditional=rope.traditional, base=base, scale=1.0, offset=offset
    )


def may_grow(rope: Any, x: Any, offset: Any, /) -> bool:
    """Whether a text is longer than in training, or the release's rope takes it to be."""
    if getattr(offset, "ndim", 0) or not hasattr(rope, "factor"):
        return False
    return bool(offset + max(x.shape[1], x.shape[-2]) > rope.max_position_embeddings)


_CALL = "DynamicNTKScalingRoPE.__call__"

PATCH = Patch(
    id="internlm-positions",
    every_model=True,
    wrong_alone="internlm2 internlm3",
    changes_alone=True,
    summary="InternLM 2 and 3: wrong output for every request, positions are doubled",
    targets=(
        *after(family("internlm2 internlm3", "Attention.__init__"), set_rope),
        *wrap(family("internlm2 internlm3", _CALL), rotate_by_length, when=may_grow, supports=True),
    ),
    probe=".probe_internlm:probe",
)
