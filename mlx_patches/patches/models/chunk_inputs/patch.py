"""A long prompt gets other tokens' inputs in Gemma 3n and 4, and fails in Qwen3-VL.

Why
    A prompt longer than a piece (2,048 tokens) is fed in pieces, each with the arguments of the
    whole prompt. Gemma takes a piece's inputs of its layers from where the cache's offset says.
    That is too late if the cache held an earlier turn before the prompt: the text is wrong. Gemma
    4 of 0.4 takes them all, and raises. So does Qwen3-VL up to 0.4, which cuts the mask of the
    images of a prompt that has none.
How
    Gemma gets the inputs of a piece's own tokens, counted from the prompt's first piece. Qwen3-VL
    is not told of a piece if the prompt has no mask.
Upstream
    Qwen3-VL: mlx-vlm 0.5.0. Gemma: not fixed in mlx-vlm 0.7.10.
Retire when
    Every supported release counts a piece's tokens from the beginning of its prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, around
from ..._shared.prompt_pieces import find_fed
from ..._shared.targets import at, vlm_models

INPUTS, MASK, PIECE = "per_layer_inputs", "visual_pos_masks", "n_to_process"


def call_with_fed(
    call: Callable[..., Any],
    model: Any,
    inputs: Any = None,
    inputs_embeds: Any = None,
    mask: Any = None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    """Gemma's call, with the inputs of the layers (rows, tokens, layers, width) that are fed."""
    whole = kwargs[INPUTS]
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    kwargs[INPUTS] = whole[:, find_fed(whole, cache, length)]
    return call(model, inputs, inputs_embeds=inputs_embeds, mask=mask, cache=cache, **kwargs)


def has_inputs(*args: Any, **kwargs: Any) -> bool:
    """Whether a call passes inputs of the layers, as one for a prompt does."""
    return kwargs.get(INPUTS) is not None


def call_without_piece(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Qwen3-VL's call for a prompt without images, or a piece of it."""
    del kwargs[PIECE]
    return call(*args, **kwargs)


def has_no_mask(*args: Any, **kwargs: Any) -> bool:
    """Whether a call passes a piece of a prompt without images."""
    return PIECE in kwargs and kwargs.get(MASK) is None


PATCH = Patch(
    id="chunk-inputs",
    formerly="piece-inputs",
    every_model=True,
    changes_alone=True,
    summary="Gemma 3n and 4 in mlx-vlm: wrong output or a crash for prompts over 2,048 tokens",
    targets=(
        *at(
            vlm_models("gemma3n"), {"Gemma3Model.__call__": around(call_with_fed)}, when=has_inputs
        ),
        *at(
            vlm_models("gemma4"),
            {"Gemma4TextModel.__call__": around(call_with_fed)},
            when=has_inputs,
        ),
        *at(
            vlm_models("qwen3_vl", "qwen3_vl_moe"),
            {"LanguageModel.__call__": around(call_without_piece)},
            when=has_no_mask,
        ),
    ),
)
