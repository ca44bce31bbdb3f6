"""Kimi K2.5 mixes two images of a prompt; PaddleOCR VL crashes on them.

Why: The vision towers run all images of a prompt as one sequence, and should attend within each
    image. Their mask adds a number to the scores instead, so that a patch attends to all images:
    Kimi K2.5 adds 1 inside the image, PaddleOCR VL adds 1 outside. PaddleOCR VL also splits the
    features at the images' lengths instead of their ends, so a second image raises. Both happen for
    single requests too.
How: The tower is called once per image, and the features are joined.
Upstream: mlx-vlm 0.6.4 attends within each image, and splits at the right places.
Retire when: No supported release is older than mlx-vlm 0.6.4.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from ....core.verbs import Function, Patch, mx, wrap

# The axis of patches in each family's pixels.
AXES = {"kimi_k25": 0, "paddleocr_vl": 1}
# The functions with the defect, besides the tower's call.
BODIES = {
    "kimi_k25": ("Attention.__call__",),
    "paddleocr_vl": ("Attention.__call__", "PaddleOCRProjector.__call__"),
}


def call_by_image(axis: int) -> Function:
    """A wrapper that calls the vision tower once per image of a prompt."""

    def call_tower(
        call: Function, tower: Any, pixels: Any, grid_thw: Any, *rest: Any, **more: Any
    ) -> Any:
        parts = list(split_images(pixels, grid_thw, axis))
        if len(parts) < 2:
            return call(tower, pixels, grid_thw, *rest, **more)
        features = [call(tower, *part, *rest, **more) for part in parts]
        if isinstance(features[0], list):
            return list(itertools.chain.from_iterable(features))
        return mx.concatenate(features)

    return call_tower


def split_images(pixels: Any, grids: Any, axis: int) -> Iterator[tuple[Any, Any]]:
    """Each image's pixels and grid; nothing if the grids do not account for all patches."""
    ends = list(itertools.accumulate(grids.prod(axis=1).tolist()))
    if not ends or ends[-1] != pixels.shape[axis]:
        return
    for index, part in enumerate(mx.split(pixels, ends[:-1], axis=axis)):
        yield part, grids[index : index + 1]


PATCH = Patch(
    id="images-apart",
    targets=tuple(
        target
        for family, axis in AXES.items()
        for target in wrap(
            f"mlx_vlm.models.{family}.vision:VisionModel.__call__",
            call_by_image(axis),
            fingerprint_of=("VisionModel.__call__", *BODIES[family]),
        )
    ),
    changes_solo=True,
    probe="mlx_patches.probes.two_images:probe",
)
