"""PaliGemma ignores all images of a prompt but the first.

Why: The vision tower's encoder returns the states of only its first image. The tokens of the other
    images are embedded as zeros.
How: The encoder returns the states of all images, joined as those of one.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The encoder returns every image.
"""

from typing import Any

from ....core.verbs import Patch, result


def join_images(encoded: Any, encoder: Any, x: Any, /) -> Any:
    """The last states (patches, width) of all images, and those of every layer."""
    return encoded if len(x) == 1 else join_states(*encoded)


def join_states(first: Any, layers: Any) -> Any:
    """The last states of all images, if the encoder returns those of its layers."""
    return (first if layers is None else layers[-1].flatten(0, 1), layers)


PATCH = Patch(
    id="paligemma-images",
    changes_alone=True,
    every_model=True,
    targets=result("mlx_vlm.models.paligemma.vision:Encoder.__call__", join_images),
)
