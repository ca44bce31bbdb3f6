"""Granite 4 Vision adds an image's features to the wrong rows or tokens of a batch, or fails.

Why
    The features of the vision tower are an array (features, tokens, width). The batch generator
    takes the first axis for rows: it joins the features of one row to those of the next, does not
    pad them, and 0.7.x keeps only the first feature of each row. It does not cut them into the
    pieces of a long prompt. Up to 0.6.x nothing else does either, so a long prompt fails alone
    too. From 0.7.x on the model cuts them by the offset of its cache, which in a batch is an
    array: each request fails. It counts from the cache's start, so that a turn that goes on from a
    filled cache fails as well.
How
    The embedding step returns the features as (rows, tokens, features, width), which the generator
    pads, cuts and joins like any other array. Where one row has features, the others get zeros.
    The language model's wrapper hands the release's layers the features and the mask of the tokens
    that are fed, whatever slice these ask for. If a host passes those of the whole prompt with
    each piece, they are counted from the offset at which the prompt began.
Upstream
    Not mended in 0.7.10.
Retire when
    The release's embedding step returns the features of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.prompt_pieces import find_fed
from ..._shared.prompt_rows import Rows, before_joining
from ..._shared.targets import GENERATORS, at

FEATURES = "deepstack_visual_embeds"
MASK = "visual_pos_masks"
MODEL = "mlx_vlm.models.granite4_vision"


def embed_by_row(
    embed: Callable[..., Any], model: Any, input_ids: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Embed prompts, with features (rows, tokens, features, width)."""
    made = embed(model, input_ids, *args, **kwargs)
    features = made.deepstack_visual_embeds
    if features is not None and features.ndim == 3:
        made.deepstack_visual_embeds = order_by_row(features, input_ids.shape[0])
    return made


def order_by_row(features: Any, rows: int) -> Any:
    """Features (features x rows, tokens, width) as (rows, tokens, features, width)."""
    return features.reshape(-1, rows, *features.shape[1:]).transpose(1, 2, 0, 3)


def complete_rows(rows: Rows, lengths: list[int]) -> Rows:
    """The prompts' arguments, where one has features each with features and a mask.

    Returns ``rows`` unchanged if all have features, or none has.
    """
    known = [row or {} for row in rows]
    given = [row[FEATURES] for row in known if is_by_row(row)]
    if len(given) in (0, len(known)):
        return rows
    import mlx.core as mx

    shape, kind = given[0].shape[2:], given[0].dtype
    completed = []
    for row, length in zip(known, lengths, strict=True):
        own = dict(row)
        if own.get(FEATURES) is None:
            own[FEATURES] = mx.zeros((1, length, *shape), kind)
        if own.get(MASK) is None:
            own[MASK] = mx.zeros((1, length), mx.bool_)
        completed.append(own)
    return completed


def is_by_row(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments have features (rows, tokens, features, width)."""
    return getattr(arguments.get(FEATURES), "ndim", 0) == 4


def has_features(*args: Any, **kwargs: Any) -> bool:
    """Whether a call passes features of each row."""
    return is_by_row(kwargs)


def call_with_fed(
    call: Callable[..., Any],
    model: Any,
    inputs: Any,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    """The language model's call, with the features and the mask of the tokens that are fed."""
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
    """A mask (rows, tokens) that stays whole where a release cuts its tokens."""

    def __init__(self, whole: Any):
        self._whole = whole

    def __getitem__(self, key: Any) -> Any:
        is_cut = isinstance(key[-1] if isinstance(key, tuple) else key, slice)
        return self._whole if is_cut else self._whole[key]


class FedFeature:
    """A feature (rows, tokens, width) that is an array, and stays whole where a release cuts it."""

    def __init__(self, whole: Any):
        self._whole = whole

    def __getitem__(self, cut: slice) -> Any:
        return self._whole

    def __mlx_array__(self) -> Any:
        return self._whole


PATCH = Patch(
    id="granite4-features",
    summary="Granite 4 Vision in a batch mixes image features of its rows, or crashes",
    targets=(
        Target(
            "mlx-vlm",
            f"{MODEL}.granite4_vision",
            "Model.get_input_embeddings",
            around(embed_by_row),
        ),
        Target(
            "mlx-vlm",
            f"{MODEL}.language",
            "LanguageModel.__call__",
            around(call_with_fed),
            fingerprint_of=("LanguageModel.__call__", "Granite.__call__"),
            when=has_features,
        ),
        *at(GENERATORS, before_joining(lambda rows, lengths: complete_rows(rows, lengths))),
    ),
)
