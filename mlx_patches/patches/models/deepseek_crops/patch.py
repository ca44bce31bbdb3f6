"""DeepSeek-VL2 sometimes ignores an image.

Why: The embedding step loops over the crops of a prompt's images, until it reads sizes of 0. It
    looks up as many crops as there are tiles, and an image has at least two, so it reads past the
    last image. MLX does not check bounds: the sizes are arbitrary memory. If their product is
    negative, tiles are dropped from the end and the prompt is embedded without the image.
How: Crops of size 0 follow those of the last image.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The step counts images by the crops.
"""

from typing import Any

from ....core.verbs import Patch, argument, mx

CROPS = "images_spatial_crop"


def append_end(images_spatial_crop: Any) -> Any:
    """The crops of prompts' images (prompts, images, 2), followed by a size of 0."""
    if images_spatial_crop is None:
        return None
    return mx.pad(mx.array(images_spatial_crop), [(0, 0), (0, 1), (0, 0)])


PATCH = Patch(
    id="deepseek-crops",
    targets=argument(
        "mlx_vlm.models.deepseek_vl_v2.deepseek_vl_v2:Model.get_input_embeddings", CROPS, append_end
    ),
    wrong_solo="deepseek_vl_v2",
)
