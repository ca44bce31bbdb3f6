"""DeepSeek-OCR 2 in mlx-vlm: wrong tiles; two images crash; prompts lose their last token.

Why: The processor tiles every image. The authors tile one only if a side is longer than a tile,
    into at least two. It passes a prompt of a list its first image only, and drops the last token
    of a prompt as if it were an end token; that of DeepSeek-OCR does so too. The model starts at
    the first tile for each prompt of a batch, and embeds one image per prompt.
How: Small images have no tiles. The processor passes each prompt its images and keeps all tokens;
    like the authors' it strips the prompt. The model is called once per image, with its own tiles
    and the tokens up to its last one, and the embeddings are joined.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: Processor and model read several images per prompt, each with its own tiles.
"""

import itertools
from typing import Any

from ....core.verbs import Function, Patch, argument, mx, wrap

_FAMILY = "mlx_vlm.models.deepseekocr_2"
_PROCESSOR = f"{_FAMILY}.processing_deepseekocr"
_FIRST = "mlx_vlm.models.deepseekocr.processing_deepseekocr:DeepseekOCRProcessor"
# The tokens of a tile, and of the whole image with the separator.
TILE, WHOLE = 144, 257


def tile(
    call: Function, image: Any, min_num: int, max_num: int, image_size: int, **more: Any
) -> Any:
    """The tiles of an image and their grid; none if it is no larger than a tile."""
    if max(image.size) <= image_size:
        return [], (1, 1)
    return call(image, max(min_num, 2), max_num, image_size, **more)


def group_images(processor: Any, /, text: Any, images: Any) -> Any:
    """The images of each prompt, if a prompt of a list has several."""
    if not isinstance(text, list) or images is None:
        return images
    counts = [prompt.count(processor.image_token) for prompt in text]
    if max(counts) < 2 or min(counts) < 1 or sum(counts) != len(images):
        return images
    rest = iter(images)
    return [list(itertools.islice(rest, count)) for count in counts]


def process_whole(
    call: Function,
    processor: Any,
    prompt: str,
    images: Any = None,
    inference_mode: bool = True,
    **options: Any,
) -> Any:
    """The inputs of a prompt with its last token; ``images`` may have one group of images."""
    if images and isinstance(images[0], list):
        (images,) = images
    return call(processor, prompt.strip(), images, inference_mode=False, **options)


def embed_apart(
    embed: Function,
    model: Any,
    input_ids: Any = None,
    pixel_values: Any = None,
    images_spatial_crop: Any = None,
    images_seq_mask: Any = None,
    **more: Any,
) -> Any:
    """The embeddings of prompts, which the model embeds in parts with one image each."""
    given = (pixel_values, images_spatial_crop, images_seq_mask)
    if not isinstance(pixel_values, list) or any(one is None for one in given):
        return embed(model, input_ids, *given, **more)
    tiles, wholes = pixel_values
    counts = [int(wide * high) for wide, high in images_spatial_crop.tolist()]
    counts = [count if count > 1 else 0 for count in counts]
    ids, mask = input_ids.reshape(1, -1), images_seq_mask.reshape(1, -1)
    places = [place for place, is_image in enumerate(mask[0].tolist()) if is_image]
    lasts = list(itertools.accumulate(TILE * count + WHOLE for count in counts))
    if not lasts or lasts[-1] != len(places):
        return embed(model, input_ids, *given, **more)
    ends = [*(places[last - 1] + 1 for last in lasts[:-1]), ids.size]
    parts, start, first = [], 0, 0
    for index, (count, end) in enumerate(zip(counts, ends, strict=True)):
        own = tiles[first : first + count] if count else None
        image, at = slice(index, index + 1), (slice(None), slice(start, end))
        pixels = [own, wholes[image]]
        parts.append(embed(model, ids[at], pixels, images_spatial_crop[image], mask[at], **more))
        start, first = end, first + count
    joined = mx.concatenate([part.inputs_embeds for part in parts], axis=1)
    parts[0].inputs_embeds = joined.reshape(*input_ids.shape, -1)
    return parts[0]


PATCH = Patch(
    id="deepseek-ocr2-images",
    wrong_solo="deepseekocr deepseekocr_2",
    targets=(
        *wrap(f"{_PROCESSOR}:dynamic_preprocess", tile),
        *argument(f"{_PROCESSOR}:DeepseekOCR2Processor.__call__", "images", group_images),
        *wrap(
            (f"{_PROCESSOR}:DeepseekOCR2Processor.process_one", f"{_FIRST}.process_one"),
            process_whole,
        ),
        *wrap(f"{_FAMILY}.deepseekocr_2:Model.get_input_embeddings", embed_apart),
    ),
)
