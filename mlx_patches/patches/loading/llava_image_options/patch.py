"""LLaVA in mlx-vlm refuses every image, with transformers 5.

Why: LLaVA's processor passes the tokenizer's options, such as ``padding``, to the image processor
    too. Since transformers 5 it raises for options that it does not know.
How: The image processor receives all options but the tokenizer's.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The processor separates the options.
"""

import copy
import functools
import importlib
from typing import Any

from ....core.verbs import Function, Patch, wrap


def process(call: Function, processor: Any, *args: Any, **kwargs: Any) -> Any:
    """Process images and texts, with an image processor that drops the tokenizer's options."""
    view = copy.copy(processor)  # another thread may use the processor itself
    view.image_processor = ImageOptions(processor.image_processor)
    return call(view, *args, **kwargs)


class ImageOptions:
    """An image processor that drops the tokenizer's options."""

    def __init__(self, images: Any):
        self._images = images

    def __getattr__(self, name: str) -> Any:
        return getattr(self._images, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        known = {name: value for name, value in kwargs.items() if name not in text_options()}
        return self._images(*args, **known)


@functools.cache
def text_options() -> frozenset[str]:
    """The options that only tokenizers have."""
    module = importlib.import_module("transformers.processing_utils")
    return frozenset(module.TextKwargs.__annotations__.keys() - module.ImagesKwargs.__annotations__)


PATCH = Patch(
    id="llava-image-options",
    severity="crash",
    every_model=True,
    changes_solo=True,
    targets=wrap("mlx_vlm.models.llava.processing_llava:LlavaProcessor.__call__", process),
)
