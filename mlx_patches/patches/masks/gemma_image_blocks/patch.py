"""Gemma 3, Gemma 4 26B and 31B, Molmo 2 in mlx-vlm: image tokens do not see the whole image.

Why: Tokens of one image attend both ways: in every layer of Gemma 3, in the sliding layers of a
    Gemma 4 whose config has ``use_bidirectional_attention: "vision"``. In Molmo 2 those of all
    images of a prompt do. mlx-vlm masks Gemma 3's and Molmo 2's causally. Of Gemma 4, releases
    before 0.6 do the same; later ones also let the tokens attend both ways in the layers with full
    attention, and only if the cache is empty. So do those of ``gemma4_unified``, where
    transformers' forward step agrees: its masks are left as they are.
How: The embedding step returns the mask of a prompt's image tokens, which the engine carries to the
    language model. Each layer's mask then also shows a token the later tokens of its image. A
    prompt is cut into chunks only between images.
Upstream: mlx-vlm PR 671 for Gemma 3, not merged. Not fixed in mlx-vlm 0.7.10. Releases up to 0.3.9,
    whose models accept no videos, are not repaired.
Retire when: The masks equal those of transformers, also in chunked prefill.
"""

import functools
import operator
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from ....core.verbs import (
    Function,
    Patch,
    argument,
    everywhere,
    mx,
    result,
    support,
    vlm_family,
    wrap,
)
from ..._shared.kept import Kept
from ..._shared.prompt_chunks import find_fed
from ..._shared.targets import vlm_generators
from .chunks import fit_chunk, fit_chunks, splits_image

# The argument in which the engine carries a prompt's image tokens (rows, tokens).
VISUAL = "visual_pos_masks"
# The same by embeddings, for callers that pass only these on.
_KEPT: Kept[list[Any]] = Kept(list)


_WHOLE = ("gemma3", "gemma4", "molmo2")
# The family in which all images of a prompt are one block.
_JOINED = "molmo2"
# The config fields with the image tokens, of other families and of this one.
_TOKENS: tuple[str, ...] = ("image_token_index", "image_token_id", "video_token_id")
_JOINED_TOKENS = (
    *("image_patch_id", "image_col_id", "image_start_token_id", "image_end_token_id"),
    *("low_res_image_start_token_id", "image_low_res_id", "frame_start_token_id"),
    "frame_end_token_id",
)


class Fed(NamedTuple):
    """What a call feeds: the image tokens (rows, tokens), and how layers show images."""

    visual: Any
    sliding_only: bool
    joined: bool


_fed: ContextVar[Fed | None] = ContextVar("mlx_patches_image_tokens", default=None)


def attends_both_ways(config: Any) -> bool:
    """Whether a whole model's images attend both ways, by its config."""
    text = config.text_config
    return config.model_type in ("gemma3", _JOINED) or (
        config.model_type == "gemma4"
        and getattr(text, "use_bidirectional_attention", None) == "vision"
    )


def find_visual(config: Any, ids: Any) -> Any:
    """The mask of the image and video tokens among token ids (rows, tokens)."""
    names = _JOINED_TOKENS if config.model_type == _JOINED else _TOKENS
    tokens = [one for one in (getattr(config, name, None) for name in names) if one is not None]
    return functools.reduce(operator.or_, (ids == token for token in tokens))


def mark_images(
    features: Any, model: Any, /, input_ids: Any, pixel_values: Any, pixel_values_videos: Any
) -> Any:
    """The embeddings of a prompt, with the mask of its image tokens if it has images."""
    if has_images(model, pixel_values, pixel_values_videos):
        features.attention_mask_4d = None  # Gemma 3's, which hides nothing
        features.visual_pos_masks = find_visual(model.config, input_ids)
        _KEPT.of(features.inputs_embeds)[:] = [features.visual_pos_masks]
    return features


def has_images(model: Any, /, pixel_values: Any, pixel_values_videos: Any) -> bool:
    """Whether a prompt has images whose tokens attend both ways."""
    shown = pixel_values is not None or pixel_values_videos is not None
    return shown and attends_both_ways(model.config)


def is_prompt(inputs_embeds: Any) -> bool:
    """Whether a call passes embeddings, as calls for a prompt do."""
    return inputs_embeds is not None


def call_with_images(
    call: Function, language: Any, inputs: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """A call of the language model whose masks show the images that it feeds."""
    embeds: Any = kwargs.get("inputs_embeds")
    visual = None if embeds is None or embeds.shape[1] == 1 else read_visual(language, kwargs)
    if visual is None:
        return call(language, inputs, *args, **kwargs)
    fed = find_fed(visual, kwargs.get("cache"), embeds.shape[1])
    is_gemma4 = language.config.model_type.startswith("gemma4")
    joined = language.config.model_type == _JOINED
    token = _fed.set(Fed(visual[:, fed], sliding_only=is_gemma4, joined=joined))
    try:
        return call(language, inputs, *args, **kwargs)
    finally:
        _fed.reset(token)


def read_visual(language: Any, given: Mapping[str, Any]) -> Any:
    """The image tokens of the prompt of a call, from its arguments; None if it has none."""
    if given.get(VISUAL) is not None:
        return given[VISUAL]
    if kept := _KEPT.of(given["inputs_embeds"]):
        return kept[0]
    types, config = given.get("mm_token_type_ids"), language.config
    if types is None or getattr(config, "use_bidirectional_attention", None) != "vision":
        return None
    if config.model_type == "gemma4_unified_text":
        return None
    return (types == 1) | (types == 2)


def make_mask(make: Function, h: Any, *args: Any, **kwargs: Any) -> Any:
    """A layer's mask; if the running call feeds images, one that shows them whole."""
    fed = _fed.get()
    if fed is None or fed.visual.shape[1] != h.shape[1]:
        return make(h, *args, **kwargs)
    if fed.sliding_only and kwargs.get("window_size") is None:
        return make(h, *args, **kwargs)
    # Molmo 2 passes all caches.
    args = tuple(one[0] if isinstance(one, list) and one else one for one in args)
    return show_images(make(h, *args, **kwargs | {"return_array": True}), fed.visual, fed.joined)


def show_images(mask: Any, visual: Any, joined: bool = False) -> Any:
    """A mask that also shows each image token the later tokens of its image.

    Args:
        mask: (tokens, columns) or (rows, 1, tokens, columns), True where a token attends.
        visual: the image tokens (rows, tokens); they are the last of the columns.
        joined: whether all images are one.
    """
    length = visual.shape[1]
    begins = visual & ~mx.pad(visual, [(0, 0), (1, 0)])[:, :-1]
    image = visual if joined else mx.where(visual, mx.cumsum(begins.astype(mx.int32), axis=1), 0)
    same = (image[:, :, None] == image[:, None]) & visual[:, None]
    later = mx.arange(length)[:, None] < mx.arange(length)
    return mask | mx.pad(
        (same & later)[:, None], [(0, 0), (0, 0), (0, 0), (mask.shape[-1] - length, 0)]
    )


def is_feeding_images() -> bool:
    return _fed.get() is not None


def make_masks(make: Function, model: Any, h: Any, cache: Any, *types: Any, **named: Any) -> Any:
    """The masks of Gemma 4's layers, without the token types that show images in every layer."""
    return make(model, h, cache)


def fit_prompt(prefill_step_size: Any, input_ids: Any, model: Any) -> Any:
    """The size of a prompt's chunks of which none ends inside an image; None for one chunk."""
    if prefill_step_size is None:
        return None
    visual = find_visual(model.config, input_ids)
    return fit_chunks(find_blocks(visual, model.config.model_type), prefill_step_size)


def find_blocks(visual: Any, family: str) -> Any:
    """The tokens (rows, tokens) that chunks keep together: images, or all from first to last."""
    if family != _JOINED:
        return visual
    count = visual.astype(mx.int32)
    return (mx.cumsum(count, axis=1) > 0) & (mx.cumsum(count, axis=1, reverse=True) > 0)


def shows_images(model: Any, pixel_values: Any, pixel_values_videos: Any) -> bool:
    """Whether a prompt of a model whose images attend both ways has images or videos."""
    config = getattr(model, "config", None)
    return hasattr(config, "text_config") and has_images(model, pixel_values, pixel_values_videos)


def is_of_gemma(batch: Any, /) -> bool:
    """Whether a batch of prompts holds images that attend both ways."""
    if batch._prompt_kwargs.get(VISUAL) is None:
        return False
    return name_family(batch) in _WHOLE


def name_family(batch: Any) -> str:
    """The family of a batch's model."""
    return type(batch.model).__module__.partition(".models.")[2].partition(".")[0]


def step_between_images(step: Function, batch: Any) -> Any:
    """Process a chunk of prompts that ends in no row inside an image."""
    size = batch.prefill_step_size
    if size is None or not is_of_gemma(batch):
        return step(batch)
    blocks = find_blocks(batch._prompt_kwargs[VISUAL], name_family(batch))
    batch.prefill_step_size = fit_chunk(blocks, size)
    if batch.prefill_step_size is None:  # the prompt ends inside an image: no chunks
        return 0
    try:
        return step(batch)
    finally:
        batch.prefill_step_size = size


def skip_inside_image(column: int | None, batch: Any, /) -> int | None:
    """The next column at which the prefix cache stores a prompt, unless it is inside an image."""
    if column is None or not is_of_gemma(batch):
        return column
    blocks = find_blocks(batch._prompt_kwargs[VISUAL], name_family(batch))
    inside = splits_image(blocks, column - batch._processed_prompt_columns)
    return None if inside else column


_EMBEDDINGS = [f"mlx_vlm.models.{one}.{one}:Model.get_input_embeddings" for one in _WHOLE]
_MASK, _PROMPTS = "models.base:create_attention_mask", "PromptProcessingBatch"

PATCH = Patch(
    id="gemma-image-blocks",
    every_model=True,
    wrong_solo="gemma3 molmo2",
    targets=(
        *wrap(
            vlm_family("gemma3", "LanguageModel.__call__"),
            call_with_images,
            fingerprint_of=("Gemma3Model.__call__",),
            when=is_prompt,
        ),
        *wrap(
            vlm_family("gemma4", "LanguageModel.__call__"),
            call_with_images,
            fingerprint_of=("Gemma4TextModel.__call__", "Gemma4TextModel._make_masks"),
            when=is_prompt,
        ),
        *wrap(
            vlm_family(_JOINED, "LanguageModel.__call__"),
            call_with_images,
            fingerprint_of=("Molmo2Transformer.__call__",),
            when=is_prompt,
        ),
        *support(
            *wrap(everywhere(_MASK), make_mask, when=is_feeding_images),
            *wrap(
                vlm_family("gemma4", "Gemma4TextModel._make_masks"),
                make_masks,
                when=is_feeding_images,
            ),
            *result(_EMBEDDINGS, mark_images, when=has_images),
            *argument(
                vlm_generators("generate_step"), "prefill_step_size", fit_prompt, when=shows_images
            ),
            *wrap(vlm_generators(f"{_PROMPTS}.prompt_step"), step_between_images, when=is_of_gemma),
            *result(
                vlm_generators(f"{_PROMPTS}._next_apc_checkpoint_column"),
                skip_inside_image,
                when=is_of_gemma,
            ),
        ),
    ),
)
