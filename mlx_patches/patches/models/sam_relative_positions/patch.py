"""DeepSeek-OCR and Unlimited-OCR in mlx-vlm: wrong features of large images.

Why: A tile is smaller than the images that SAM was trained on, so its tower interpolates the
    relative positions. mlx-vlm aligns the first places instead of the centers of the places, which
    shifts the positions by up to half a place.
How: The tower gets a table that already has the tile's length, interpolated as in PyTorch.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The tower interpolates at the centers of places.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx


def resample(q_size: int, k_size: int, rel_pos: Any) -> Any:
    """A table of relative positions (places, width) for sides of these lengths."""
    count = 2 * max(q_size, k_size) - 1
    if len(rel_pos) == count:
        return rel_pos
    return (weigh(count, len(rel_pos)) @ rel_pos.astype(mx.float32)).astype(rel_pos.dtype)


def weigh(count: int, size: int) -> Any:
    """The weights (count, size) of a table's places at each place of an axis of another length."""
    centers = mx.clip((mx.arange(count) + 0.5) * (size / count) - 0.5, 0, size - 1)
    return mx.maximum(1 - mx.abs(mx.arange(size) - centers[:, None]), 0)


PATCH = Patch(
    id="sam-relative-positions",
    wrong_solo="deepseekocr deepseekocr_2 unlimited_ocr",
    targets=argument("mlx_vlm.models.deepseekocr.sam:get_rel_pos", "rel_pos", resample),
)
