"""Granite 4 Vision in a batch mixes image features of its rows, or crashes.

Why: The features of the vision tower are an array (features, tokens, width). The batch generator
    treats the first axis as rows: it concatenates the features of different rows, does not pad
    them, and 0.7.x keeps only the first feature of each row. It does not slice them for the chunks
    of a long prompt. Up to 0.6.x nothing else does either, so long prompts crash even in a single
    request. Since 0.7.x the model slices them by its cache's offset, which is an array in a batch:
    each request crashes. It counts from the cache's start, so a turn that continues a filled cache
    crashes as well.
How: The embedding step returns the features as (rows, tokens, features, width), which the generator
    pads, slices and joins like any other array. If one row has features, the others get zeros. The
    release's layers get the features and the mask of the tokens fed, whatever slice they take. If a
    host passes those of the whole prompt with each chunk, they are counted from the offset at which
    the prompt began.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: The release's embedding step returns the features of each row.
"""

from typing import Any

from ....core.verbs import Function, Patch, result, wrap
from ..._shared.image_features import FEATURES, MASK, complete_rows, has_features, is_by_row
from ..._shared.prompt_chunks import find_fed
from ..._shared.prompt_rows import change_prompts

MODEL = "mlx_vlm.models.granite4_vision"


def order_features(embeddings: Any, model: Any, /, input_ids: Any) -> Any:
    """The embeddings of prompts, with features (rows, tokens, features, width)."""
    features = embeddings.deepstack_visual_embeds
    if features is not None and features.ndim == 3:
        embeddings.deepstack_visual_embeds = order_by_row(features, input_ids.shape[0])
    return embeddings


def order_by_row(features: Any, rows: int) -> Any:
    """Features (features x rows, tokens, width) as (rows, tokens, features, width)."""
    return features.reshape(-1, rows, *features.shape[1:]).transpose(1, 2, 0, 3)


def call_with_fed(
    call: Function,
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    features: Any = kwargs.get(FEATURES)
    visual: Any = kwargs.get(MASK)
    if is_by_row(kwargs) and visual is not None:
        length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
        fed = find_fed(features, cache, length)
        kwargs[FEATURES] = [
            FedFeature(features[:, fed, number]) for number in range(features.shape[2])
        ]
        kwargs[MASK] = FedMask(visual[:, fed])
    return call(model, inputs, inputs_embeds=inputs_embeds, mask=mask, cache=cache, **kwargs)


class FedMask:
    """A mask (rows, tokens) that stays whole if a release slices its tokens."""

    def __init__(self, whole: Any):
        self._whole = whole

    def __getitem__(self, key: Any) -> Any:
        is_slice = isinstance(key[-1] if isinstance(key, tuple) else key, slice)
        return self._whole if is_slice else self._whole[key]


class FedFeature:
    """A feature (rows, tokens, width), an array that stays whole if a release slices it."""

    def __init__(self, whole: Any):
        self._whole = whole

    def __getitem__(self, cut: slice) -> Any:
        return self._whole

    def __mlx_array__(self) -> Any:
        return self._whole


PATCH = Patch(
    id="granite4-features",
    targets=(
        *result(f"{MODEL}.granite4_vision:Model.get_input_embeddings", order_features),
        *wrap(
            f"{MODEL}.language:LanguageModel.__call__",
            call_with_fed,
            fingerprint_of=("LanguageModel.__call__", "Granite.__call__"),
            when=has_features,
        ),
        *change_prompts(lambda rows, lengths: complete_rows(rows, lengths), (FEATURES,)),
    ),
)
