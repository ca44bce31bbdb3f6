"""HunyuanOCR in mlx-vlm: images are resized with another filter than in training.

Why: The image processor resizes with a bilinear filter. The authors' processor calls Pillow without
    a filter, which is then bicubic.
How: The image is resized by Pillow's default before the processor, which keeps an image of the
    final size as it is.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The image processor resizes with a bicubic filter.
"""

from importlib import import_module
from typing import Any

from ....core.verbs import Patch, argument


def resize_image(processor: Any, /, image: Any) -> Any:
    """The image in its final size."""
    if not processor.do_resize:
        return image
    if processor.do_convert_rgb and image.mode != "RGB":
        image = image.convert("RGB")
    rows, columns = import_module(type(processor).__module__).smart_resize(
        image.height,
        image.width,
        factor=processor.patch_size * processor.merge_size,
        min_pixels=processor.min_pixels,
        max_pixels=processor.max_pixels,
    )
    return image.resize((columns, rows))


PATCH = Patch(
    id="hunyuan-bicubic",
    every_model=True,
    wrong_solo="hunyuan_vl",
    targets=argument(
        "mlx_vlm.models.hunyuan_vl.processing_hunyuan_vl:HunYuanVLImageProcessor._preprocess_single",
        "image",
        resize_image,
    ),
)
