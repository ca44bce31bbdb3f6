"""Features of Qwen3 images for later layers: all but the first layer's are dropped."""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from ....core.verbs import Function, Patch, Target, mx, result, support, wrap
from ..._shared.image_features import FEATURES, MASK, complete_rows, has_features
from ..._shared.prompt_chunks import find_fed
from ..._shared.prompt_rows import change_prompts

MODELS = "mlx_vlm.models"
# The tower's features in the current embedding step, and those that are being fed.
_seen: ContextVar[list[Any] | None] = ContextVar("mlx_patches_tower_features", default=None)
_fed: ContextVar[list[Any] | None] = ContextVar("mlx_patches_fed_features", default=None)


def embed_images(embed: Function, thinker: Any, *args: Any, **kwargs: Any) -> Any:
    """The embeddings of a prompt, with the features that its images have for later layers."""
    seen: list[Any] = []
    token = _seen.set(seen)
    try:
        embedded = embed(thinker, *args, **kwargs)
    finally:
        _seen.reset(token)
    if len(seen) == 1 and embedded.deepstack_visual_embeds is None:
        embedded.deepstack_visual_embeds = spread(seen[0], embedded.visual_pos_masks)
    return embedded


def note_features(output: Any, /) -> Any:
    """The tower's output; its features are noted in an embedding step."""
    seen = _seen.get()
    if seen is not None and isinstance(output, tuple) and output[1]:
        seen.append(output[1])
    return output


def spread(features: Sequence[Any], visual: Any) -> Any:
    """The features (rows, tokens, layers, width), with zeros for tokens of no image.

    Args:
        features: (image tokens, width) for each layer.
        visual: the image tokens (rows, tokens).
    """
    places = mx.cumsum(visual.reshape(-1).astype(mx.int32)) - 1
    spread = mx.stack(list(features), axis=1)[mx.maximum(places, 0)]
    spread = spread.reshape(*visual.shape, *spread.shape[1:])
    return mx.where(visual[..., None, None], spread, 0)


def call_with_fed(
    call: Function, language: Any, inputs: Any, inputs_embeds: Any = None, **kwargs: Any
) -> Any:
    """Call the language model, whose layers get the features of the tokens that are fed."""
    features: Any = kwargs[FEATURES]
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    fed = find_fed(features, kwargs.get("cache"), length)
    token = _fed.set([features[:, fed, layer] for layer in range(features.shape[2])])
    try:
        return call(language, inputs, inputs_embeds=inputs_embeds, **kwargs)
    finally:
        _fed.reset(token)


def is_feeding() -> bool:
    return _fed.get() is not None


def pass_features(call: Function, model: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the layers with the features that the language model received."""
    if (features := _fed.get()) and features[0].shape[1]:
        kwargs |= {FEATURES: features, MASK: features[0]}
    return call(model, *args, **kwargs)


def add_features(add: Function, model: Any, hidden: Any, visual: Any, features: Any) -> Any:
    return hidden + features.astype(hidden.dtype)


def _targets(model: str, embeds: str, layers: str) -> tuple[Target, ...]:
    """The targets of a family: its embedding step, its tower and its language model."""
    return (
        *wrap(f"{MODELS}.{model}.{embeds}.get_input_embeddings", embed_images),
        *support(
            *result(f"{MODELS}.{model}.vision:VisionModel.__call__", note_features),
            *wrap(
                f"{MODELS}.{model}.language:LanguageModel.__call__",
                call_with_fed,
                when=has_features,
            ),
            *wrap(f"{MODELS}.{model}.language:{layers}.__call__", pass_features, when=is_feeding),
            *wrap(
                f"{MODELS}.{model}.language:{layers}._deepstack_process",
                add_features,
                when=is_feeding,
            ),
        ),
    )


_ROWS = support(*change_prompts(lambda rows, lengths: complete_rows(rows, lengths), (FEATURES,)))
OMNI_DEEPSTACK = Patch(
    id="omni-deepstack",
    wrong_solo="qwen3_omni_moe",
    targets=(*_targets("qwen3_omni_moe", "thinker:Thinker", "Qwen3VLMoEModel"), *_ROWS),
    doc="""Qwen3-Omni in mlx-vlm reads images wrongly: features for later layers are dropped.

    Why: The vision tower also returns features for the first layers of the language model. The
        embedding step drops them, the language model ignores them, and its layers would add them to
        other tokens.
    How: The features become an array (rows, tokens, layers, width), with zeros for texts, which the
        generator pads, slices and joins like any other. Each layer adds those of the tokens fed. A
        prompt with both images and videos is unchanged.
    Upstream: mlx-vlm 0.6.7 returns and adds them.
    Retire when: No supported release is older than mlx-vlm 0.6.7.
    """,
)

QWEN3_VL_DEEPSTACK = Patch(
    id="qwen3-vl-deepstack",
    wrong_solo="qwen3_vl qwen3_vl_moe",
    targets=(
        *_targets("qwen3_vl", "qwen3_vl:Model", "Qwen3VLModel"),
        *_targets("qwen3_vl_moe", "qwen3_vl_moe:Model", "Qwen3VLMoEModel"),
        *_ROWS,
    ),
    doc="""Qwen3-VL in mlx-vlm 0.4 reads images wrongly: features for later layers are dropped.

    Why: The embedding step replaces the features by the result of ``mx.eval``, which is None. Its
        layers would add those of the whole batch to each row.
    How: As for Qwen3-Omni.
    Upstream: mlx-vlm 0.5.0.
    Retire when: No supported release is older than mlx-vlm 0.5.0.
    """,
)
