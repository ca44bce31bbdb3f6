"""GLM-4.1V and GLM-4.5V in mlx-vlm: an image's patches get inexact positions.

Why: The table of position embeddings is resized to an image's grid. The authors interpolate it
    bicubically, mlx-vlm bilinearly. GLM-4.1V's vision blocks also normalize with a constant of
    their own instead of the config's.
How: The embeddings are resized bicubically. The norms of new blocks get the config's constant.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm interpolates bicubically.
"""

from typing import Any

from ....core.verbs import Patch, after, mx, result
from ..._shared.bicubic import resize


def add_positions(
    _: Any,
    model: Any,
    embeddings: Any,
    lengths: Any,
    image_shapes: Any,
    h_coords: Any,
    w_coords: Any,
    /,
) -> Any:
    """The embeddings of patches (patches, width) plus those of their positions."""
    weight = model.position_embedding.weight
    size = round(weight.shape[0] ** 0.5)
    table = weight.astype(mx.float32).reshape(size, size, -1)
    parts, start = [], 0
    for (_, height, width), length in zip(image_shapes.tolist(), lengths, strict=True):
        places = slice(start, start := start + int(length))
        grid = resize(table, height, width)
        parts.append(grid[h_coords[places], w_coords[places]])
    return embeddings + mx.concatenate(parts).astype(weight.dtype)


def set_constants(block: Any, config: Any, /) -> None:
    """Give a block's norms the constant of the config."""
    for norm in (block.norm1, block.norm2):
        norm.eps = config.rms_norm_eps


_BLOCKS = {"glm4v": "Glm4vVisionBlock", "glm4v_moe": "Glm4vMoeVisionBlock"}

PATCH = Patch(
    id="glm4v-positions",
    every_model=True,
    wrong_solo="glm4v glm4v_moe",
    targets=tuple(
        target
        for family, block in _BLOCKS.items()
        for target in (
            *result(
                f"mlx_vlm.models.{family}.vision:Glm4vVisionEmbeddings.__call__", add_positions
            ),
            *after(
                f"mlx_vlm.models.{family}.vision:{block}.__init__", set_constants, supports=True
            ),
        )
    ),
)
