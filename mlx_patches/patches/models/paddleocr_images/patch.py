"""PaddleOCR-VL in mlx-vlm refuses a prompt with two images.

Why: The image processor stacks the images of a prompt like frames of a video. Images of different
    sizes cannot be stacked; of equal sizes, only the first gets tokens.
How: Images are processed one by one, and their patches joined.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The image processor gives each image a grid.
"""

from __future__ import annotations

from typing import Any

from ....core.verbs import Function, Patch, wrap


def process_apart(call: Function, processor: Any, images: Any, **kwargs: Any) -> Any:
    """Process images one by one; returns the patches of all, and the grid of each."""
    if not isinstance(images, (list, tuple)) or len(images) == 1:
        return call(processor, images, **kwargs)
    return join([call(processor, [image], **kwargs) for image in images])


def join(made: list[Any]) -> Any:
    """The first of these results, with the patches (1, patches, ...) and grids of all."""
    import numpy as np

    for name, axis in {"pixel_values": 1, "image_grid_thw": 0}.items():
        made[0][name] = np.concatenate([one[name] for one in made], axis)
    return made[0]


PATCH = Patch(
    id="paddleocr-images",
    every_model=True,
    severity="crash",
    changes_solo=True,
    targets=wrap(
        "mlx_vlm.models.paddleocr_vl.processing_paddleocr_vl:ImageProcessor.preprocess",
        process_apart,
    ),
)
