"""Prompts with images of five models get wrong text, or fail, beside others or in pieces.

Why
    Ernie 4.5 VL and Hunyuan VL number an image's tokens from the whole prompt, also if they are
    fed a piece of it. Falcon OCR, Cohere Compass and Llama 3.2 Vision are given masks, features or
    states of an image that mlx-vlm's batch generator cannot join with another prompt's, or cuts
    once more than the model expects.
How
    A prompt with an image of these models is read whole and by itself, through the generator's own
    settings, in force while it begins to read it. Texts are read together as before, and all answer
    in one batch. An image's position ids come with its prompt in Hunyuan VL, and stay on the model
    for no other.
Upstream
    Not mended in mlx-vlm 0.7.10.
Retire when
    None of these families is red in the lab's scenarios of features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import GENERATORS, at

_HUNYUAN = "hunyuan_vl"
FAMILIES = {"cohere_compass", "ernie4_5_moe_vl", "falcon_ocr", _HUNYUAN, "mllama"}
# Arguments of a prompt that only an image brings.
IMAGE = (
    "pixel_values",
    "image_grid_thw",
    "image_grid_hw",
    "attention_mask_4d",
    "cross_attention_states",
)
# The item of a waiting sequence that holds its prompt's arguments.
_ARGUMENTS = 3


def is_concerned(model: Any) -> bool:
    """Whether a model, or a language model, is of one of the families."""
    package, _, rest = type(model).__module__.partition(".models.")
    return package == "mlx_vlm" and rest.partition(".")[0] in FAMILIES


def count_texts(generator: Any) -> int | None:
    """How many texts wait in front of the first prompt with an image.

    None if no such prompt is among those that the generator would read next.
    """
    following = generator._unprocessed_sequences[: generator.prefill_batch_size]
    images = (index for index, one in enumerate(following) if has_image(one))
    return next(images, None)


def has_image(sequence: Sequence[Any]) -> bool:
    """Whether a waiting sequence's prompt has an image."""
    arguments = sequence[_ARGUMENTS] or {}
    return any(arguments.get(name) is not None for name in IMAGE)


def has_images_next(generator: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the generator would read a prompt with an image of one of the families next."""
    waiting = getattr(generator, "_unprocessed_sequences", None)
    return bool(waiting) and is_concerned(generator.model) and count_texts(generator) is not None


def read_alone(following: Callable[..., Any], generator: Any, *args: Any, **kwargs: Any) -> Any:
    """The generator's step, in which it begins to read texts, or one prompt with an image."""
    texts = count_texts(generator)
    size, piece = generator.prefill_batch_size, generator.prefill_step_size
    generator.prefill_batch_size = texts or 1
    if not texts:
        generator.prefill_step_size = None
    try:
        return following(generator, *args, **kwargs)
    finally:
        generator.prefill_batch_size, generator.prefill_step_size = size, piece


def is_image(
    input_ids: Any, model: Any, pixel_values: Any = None, *args: Any, **kwargs: Any
) -> bool:
    """Whether an answer is to a prompt with an image, by a model of one of the families."""
    return pixel_values is not None and is_concerned(model)


def read_whole(generate: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The tokens of an answer to a prompt that is read in one piece."""
    return generate(*args, **{**kwargs, "prefill_step_size": None})


def embed_with_positions(embed: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """Hunyuan VL: a prompt's embeddings, with its position ids if it has an image."""
    features = embed(model, *args, **kwargs)
    if getattr(features, "position_ids", None) is None:
        features.position_ids = getattr(model.language_model, "_position_ids", None)
    return features


def forget_positions(
    init: Callable[..., None], batch: Any, model: Any, *args: Any, **kwargs: Any
) -> None:
    """Begin to read prompts; Hunyuan VL forgets an image's position ids, as for a prompt alone."""
    if type(model).__module__ == f"mlx_vlm.models.{_HUNYUAN}.language":
        model._position_ids = None
    init(batch, model, *args, **kwargs)


PATCH = Patch(
    id="image-prompts",
    every_model=True,
    summary=(
        "Ernie 4.5 VL, Hunyuan VL, Falcon OCR, Compass, Llama 3.2: wrong "
        "images in batches and chunks"
    ),
    targets=(
        *at(GENERATORS, {"BatchGenerator._next": around(read_alone)}, when=has_images_next),
        *at(GENERATORS, {"generate_step": around(read_whole)}, when=is_image),
        Target(
            "mlx-vlm",
            f"mlx_vlm.models.{_HUNYUAN}.{_HUNYUAN}",
            "Model.get_input_embeddings",
            around(embed_with_positions),
            supports=True,
        ),
        *at(
            GENERATORS,
            {"PromptProcessingBatch.__init__": around(forget_positions)},
            supports=True,
        ),
    ),
)
