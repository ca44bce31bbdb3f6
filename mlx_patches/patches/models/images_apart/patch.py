"""Two images in a prompt of PaddleOCR VL fail; in Kimi K2.5 each one's features are of both.

Why
    The vision towers read all images of a prompt as one sequence, and are to attend within each
    image. Their mask adds a number to the scores instead: a patch attends to all images. Kimi K2.5
    adds 1 inside its own image, PaddleOCR VL adds 1 outside of it. The latter also takes the
    images' lengths for the places at which to split their features, so that a second image raises.
    A request alone is wrong as well.
How
    The tower is called once for each image, and the features are joined.
Upstream
    mlx-vlm 0.6.4 attends within each image, and splits at the right places.
Retire when
    No supported release is older than mlx-vlm 0.6.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from ....core.patch import Factory, Patch, Target, around

# Of each family's pixels, the axis of patches.
AXES = {"kimi_k25": 0, "paddleocr_vl": 1}
# The functions that have the defect, beside the tower's own.
BODIES = {
    "kimi_k25": ("Attention.__call__",),
    "paddleocr_vl": ("Attention.__call__", "PaddleOCRProjector.__call__"),
}


def image_by_image(axis: int) -> Factory:
    """The vision tower's call, once for each image of a prompt."""

    def call(
        original: Callable[..., Any],
        tower: Any,
        pixels: Any,
        grid_thw: Any,
        *rest: Any,
        **more: Any,
    ) -> Any:
        parts = list(split_images(pixels, grid_thw, axis))
        if len(parts) < 2:
            return original(tower, pixels, grid_thw, *rest, **more)
        return join([original(tower, *part, *rest, **more) for part in parts])

    return around(call)


def split_images(pixels: Any, grids: Any, axis: int) -> Iterator[tuple[Any, Any]]:
    """Each image's pixels and its grid; nothing if the pixels are not all patches of the grids.

    Args:
        pixels: the patches of all images, along ``axis``.
        grids: a row for each image: its numbers of patches, whose product it has.
        axis: of the pixels.
    """
    import mlx.core as mx

    ends = list(itertools.accumulate(grids.prod(axis=1).tolist()))
    if not ends or ends[-1] != pixels.shape[axis]:
        return
    for index, part in enumerate(mx.split(pixels, ends[:-1], axis=axis)):
        yield part, grids[index : index + 1]


def join(features: list[Any]) -> Any:
    """The features of all images, of arrays or of lists with an array for each image."""
    if isinstance(features[0], list):
        return list(itertools.chain.from_iterable(features))
    import mlx.core as mx

    return mx.concatenate(features)


PATCH = Patch(
    id="images-apart",
    summary="Kimi K2.5 mixes two images of a prompt; PaddleOCR VL crashes on them",
    targets=tuple(
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{family}.vision",
            "VisionModel.__call__",
            image_by_image(axis),
            fingerprint_of=("VisionModel.__call__", *BODIES[family]),
        )
        for family, axis in AXES.items()
    ),
    changes_alone=True,
)
