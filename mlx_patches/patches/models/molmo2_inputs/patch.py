"""Molmo 2 in mlx-vlm: prompts lack their first token, and images are resized differently.

Why: The authors' processor begins each prompt with the tokenizer's BOS token, or with its EOS token
    if it has none: the chat template has neither. It samples images bilinearly, without smoothing.
    mlx-vlm adds no token, and resizes by PIL, which averages the pixels of a large image.
How: The token is put before the prompts of a Molmo 2 processor, also without images. Images are
    sampled as the authors do.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The release's processor adds the token and samples images without smoothing.
"""

import importlib
from typing import Any

from ....core.verbs import Function, Patch, argument, wrap

_BILINEAR = 2


def is_molmo(processor: Any) -> bool:
    return type(processor).__name__ == "Molmo2Processor"


def begin_prompts(prompts: Any, processor: Any) -> Any:
    """Prompts, or one, that begin with the token."""
    tokenizer = processor.tokenizer
    token = tokenizer.bos_token or tokenizer.eos_token
    if isinstance(prompts, str):
        return prompts if prompts.startswith(token) else token + prompts
    return prompts and [begin_prompts(one, processor) for one in prompts]


def resize(call: Function, image: Any, desired_output_size: Any, resample: Any) -> Any:
    """The image (rows, columns, channels) in another size, from 0 to 1."""
    if resample != _BILINEAR or image.max() <= 1:
        return call(image, desired_output_size, resample)
    np: Any = importlib.import_module("numpy")
    made = image.astype(np.float32)
    for axis, count in enumerate(desired_output_size):
        made = sample(np, made, axis, count)
    return made.round().clip(0, 255) / np.float32(255)


def sample(np: Any, image: Any, axis: int, count: int) -> Any:
    """An image with this many rows or columns, each between the two nearest."""
    length = image.shape[axis]
    at = ((np.arange(count, dtype=np.float32) + 0.5) * (length / count) - 0.5).clip(0, length - 1)
    low = at.astype(np.int64)
    high = (low + 1).clip(0, length - 1)
    share = (at - low).astype(np.float32).reshape([-1 if one == axis else 1 for one in range(3)])
    return image.take(low, axis) * (1 - share) + image.take(high, axis) * share


PATCH = Patch(
    id="molmo2-inputs",
    every_model=True,
    wrong_solo="molmo2",
    targets=(
        *wrap("mlx_vlm.models.molmo2.processing:resize_image_pil", resize),
        *argument(
            "mlx_vlm.utils:prepare_inputs", "prompts", begin_prompts, when=is_molmo, supports=True
        ),
    ),
)
