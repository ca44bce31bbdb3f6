"""Pixtral, Mistral Small 3.1 in mlx-vlm before 0.6: one of several images is read; wrong sizes.

Why: The processor takes the first image's size for the sizes of a prompt's images: the others have
    one token each. Mistral 3's resizes images to multiples of a patch, not of four merged ones.
How: The image processor gets the size of merged patches, and its sizes are listed by prompt.
Upstream: mlx-vlm 0.6.
Retire when: No supported release is older than mlx-vlm 0.6.
"""

import copy
from typing import Any

from ....core.verbs import Function, Patch, wrap

SIZES = "image_sizes"


def process(call: Function, processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Process images and texts, with the sizes of each prompt's images."""
    view = copy.copy(processor)  # another thread may use the processor itself
    patch = processor.patch_size * processor.spatial_merge_size
    view.image_processor = Sized(processor.image_processor, patch)
    return call(view, *args, **kwargs)


class Sized:
    """An image processor for merged patches of a size."""

    def __init__(self, images: Any, patch: int):
        self._images, self._patch = images, patch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._images, name)

    def __call__(self, images: Any, **kwargs: Any) -> Any:
        return Made(self._images(images, **{"patch_size": self._patch, **kwargs}), images)


class Made(dict[str, Any]):
    """Processed images, whose sizes ``get`` returns by prompt."""

    def __init__(self, made: Any, images: Any):
        super().__init__(made)
        self._images = images

    def get(self, name: str, default: Any = None) -> Any:
        if name != SIZES or name not in self:
            return super().get(name, default)
        found = self[name]  # a list, or an array
        if len(found) and isinstance(found[0][0], (list, tuple)):  # transformers 4
            return found
        sizes = iter(found)
        return [[tuple(map(int, next(sizes))) for _ in sample] for sample in self._images]


PATCH = Patch(
    id="pixtral-image-sizes",
    wrong_solo="mistral3 pixtral",
    targets=wrap(
        (
            "mlx_vlm.models.pixtral.processing_pixtral:PixtralProcessor.__call__",
            "mlx_vlm.models.mistral3.processing_mistral3:Mistral3Processor.__call__",
        ),
        process,
    ),
)
