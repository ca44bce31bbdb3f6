"""Step-3.7 in mlx-vlm: other images than squares are padded with black; two images crash.

Why: The authors pad an image to a square only if a side has less than 32 pixels and the other more
    than four times as many. mlx-vlm pads every image, so its tiles and their number differ. Its
    processor also rejects a prompt with more than one image token.
How: Only such images are padded. A prompt with several images is processed image by image, each
    with the text before it, and the inputs are joined.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm pads only such images, and accepts several images.
"""

from typing import Any

from ....core.verbs import Function, Patch, wrap

_MODULE = "mlx_vlm.models.step3p7.processing_step3p7"
# Images are padded if a side is shorter, and the other longer than this many times.
SHORT, TIMES = 32, 4
# The inputs of several images that are joined along the text.
_TEXT = ("input_ids", "attention_mask")


def pad_image(call: Function, patcher: Any, img: Any) -> Any:
    return call(patcher, img) if is_padded(*img.size) else img


def is_padded(width: int, height: int) -> bool:
    """Whether the authors pad an image of this size."""
    short, long = sorted((width, height))
    return short < SHORT and long > TIMES * short


def read_images(
    call: Function,
    processor: Any,
    text: Any = None,
    images: Any = None,
    return_tensors: Any = None,
    **options: Any,
) -> Any:
    """The inputs of a prompt; those of several images are joined."""
    parts = split_text(text, processor.image_token)
    if len(parts) < 2 or not isinstance(images, list) or len(images) != len(parts):
        return call(processor, text, images, return_tensors, **options)
    found = [
        call(processor, part, [one], **options) for part, one in zip(parts, images, strict=True)
    ]
    return type(found[0])(join_inputs(found), tensor_type=return_tensors)


def split_text(text: Any, token: str) -> list[str]:
    """A prompt's parts, each with one image token; the last part has the text after it."""
    if isinstance(text, list):
        text = text[0] if len(text) == 1 else None
    before, *others = (text or "").split(token)
    parts = [f"{one}{token}" for one in (before, *others[:-1])]
    return [*parts[:-1], parts[-1] + others[-1]] if others else []


def join_inputs(found: Any) -> dict[str, Any]:
    import numpy as np

    joined = {}
    for name in dict.fromkeys(name for one in found for name in one):
        values = [one[name] for one in found if name in one]
        joined[name] = np.concatenate(values, axis=1 if name in _TEXT else 0)
    return joined


PATCH = Patch(
    id="step3-images",
    every_model=True,
    wrong_solo="step3p7",
    targets=(
        *wrap(f"{_MODULE}:ImagePatcher.square_pad", pad_image),
        *wrap(f"{_MODULE}:Step3VLProcessor.__call__", read_images),
    ),
)
