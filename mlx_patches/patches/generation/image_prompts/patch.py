"""Ernie 4.5 VL, Hunyuan VL, Falcon OCR, Compass, Llama 3.2: wrong images in batches and chunks.

Why: Ernie 4.5 VL and Hunyuan VL compute the positions of an image's tokens from the whole prompt,
    even when they process a chunk of it. Falcon OCR, Cohere Compass and Llama 3.2 Vision receive
    masks, features or states of an image that mlx-vlm's batch generator cannot join with another
    prompt's, or that it cuts although the model does so too.
How: These models process a prompt with an image in one chunk and in a batch of one: the generator's
    own settings are changed while it starts the prompt. Text prompts share a batch as before, and
    all rows decode in one batch. Hunyuan VL receives an image's position ids with its prompt, and
    the model does not keep them for other prompts.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: None of these families is red in the lab's ``features`` scenarios.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, argument, before, result, wrap
from ..._shared.targets import vlm_generators

_HUNYUAN = "hunyuan_vl"
FAMILIES = {"cohere_compass", "ernie4_5_moe_vl", "falcon_ocr", _HUNYUAN, "mllama"}
# The arguments that only prompts with an image have.
IMAGE = (
    "pixel_values",
    "image_grid_thw",
    "image_grid_hw",
    "attention_mask_4d",
    "cross_attention_states",
)
# The item of a waiting sequence that holds its prompt's arguments.
_ARGUMENTS = 3


def is_affected(model: Any) -> bool:
    package, _, rest = type(model).__module__.partition(".models.")
    return package == "mlx_vlm" and rest.partition(".")[0] in FAMILIES


def count_texts(generator: Any) -> int | None:
    """How many text prompts wait before the first prompt with an image.

    None if no such prompt is among those that the generator would start next.
    """
    following = generator._unprocessed_sequences[: generator.prefill_batch_size]
    images = (index for index, one in enumerate(following) if has_image(one))
    return next(images, None)


def has_image(sequence: Sequence[Any]) -> bool:
    arguments = sequence[_ARGUMENTS] or {}
    return any(arguments.get(name) is not None for name in IMAGE)


def has_images_next(generator: Any, /) -> bool:
    """Whether the generator would start a prompt with an image for one of the families next."""
    waiting = getattr(generator, "_unprocessed_sequences", None)
    return bool(waiting) and is_affected(generator.model) and count_texts(generator) is not None


def start_image(step: Function, generator: Any, *args: Any, **kwargs: Any) -> Any:
    """A step of the generator in which it starts only text prompts, or one with an image."""
    texts = count_texts(generator)
    batch_size, step_size = generator.prefill_batch_size, generator.prefill_step_size
    generator.prefill_batch_size = texts or 1
    if not texts:
        generator.prefill_step_size = None
    try:
        return step(generator, *args, **kwargs)
    finally:
        generator.prefill_batch_size, generator.prefill_step_size = batch_size, step_size


def is_image(model: Any, pixel_values: Any) -> bool:
    """Whether a model of one of the families answers a prompt with an image."""
    return pixel_values is not None and is_affected(model)


def skip_chunking(prefill_step_size: Any, model: Any, pixel_values: Any) -> Any:
    """The size of the prompt's chunks; None, a single chunk, for a prompt with an image."""
    return None if is_image(model, pixel_values) else prefill_step_size


def add_positions(features: Any, model: Any, /) -> Any:
    """The embeddings of a prompt for Hunyuan VL, with its position ids if it has an image."""
    if getattr(features, "position_ids", None) is None:
        features.position_ids = getattr(model.language_model, "_position_ids", None)
    return features


def drop_positions(model: Any) -> None:
    """Drop the position ids of an image that Hunyuan VL kept, before a batch of prompts starts."""
    if type(model).__module__ == f"mlx_vlm.models.{_HUNYUAN}.language":
        model._position_ids = None


PATCH = Patch(
    id="image-prompts",
    every_model=True,
    targets=(
        *wrap(vlm_generators("BatchGenerator._next"), start_image, when=has_images_next),
        *argument(
            vlm_generators("generate_step"), "prefill_step_size", skip_chunking, when=is_image
        ),
        *result(
            f"mlx_vlm.models.{_HUNYUAN}.{_HUNYUAN}:Model.get_input_embeddings",
            add_positions,
            supports=True,
        ),
        *before(vlm_generators("PromptProcessingBatch.__init__"), drop_positions, supports=True),
    ),
)
