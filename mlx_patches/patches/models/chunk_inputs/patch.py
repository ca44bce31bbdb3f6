"""Gemma 3n and 4 in mlx-vlm: wrong output or a crash for prompts over 2,048 tokens.

Why: A prompt longer than a chunk (2,048 tokens) is fed in chunks, each with the arguments of the
    whole prompt. Gemma selects a chunk's per-layer inputs by the cache's offset, which is too large
    if the cache held an earlier turn: the output is wrong. Gemma 4 of mlx-vlm 0.4 selects nothing,
    and raises. Qwen3-VL up to 0.4 raises as well: it slices the image mask of a prompt that has
    none.
How: Gemma gets the per-layer inputs of the chunk's own tokens, counted from the first chunk of the
    prompt. Qwen3-VL gets no ``n_to_process`` for a prompt without an image mask.
Upstream: Qwen3-VL: mlx-vlm 0.5.0. Gemma: not fixed in mlx-vlm 0.7.10.
Retire when: Every supported release counts a chunk's tokens from the beginning of its prompt.
"""

from typing import Any

from ....core.verbs import Patch, argument, vlm_family
from ..._shared.prompt_chunks import find_fed


def select_inputs(inputs: Any, inputs_embeds: Any, cache: Any, per_layer_inputs: Any) -> Any:
    """The inputs of the layers (rows, tokens, layers, width) for the tokens that are fed."""
    if per_layer_inputs is None:
        return None
    length = (inputs if inputs_embeds is None else inputs_embeds).shape[1]
    return per_layer_inputs[:, find_fed(per_layer_inputs, cache, length)]


def has_inputs(per_layer_inputs: Any) -> bool:
    return per_layer_inputs is not None


def drop_without_mask(visual_pos_masks: Any, n_to_process: Any) -> Any:
    """The number of tokens of a chunk; None for a prompt without images."""
    return None if visual_pos_masks is None else n_to_process


def is_chunk_of_text(visual_pos_masks: Any, n_to_process: Any) -> bool:
    return n_to_process is not None and visual_pos_masks is None


_GEMMA = (
    *vlm_family("gemma3n", "Gemma3Model.__call__"),
    *vlm_family("gemma4", "Gemma4TextModel.__call__"),
)
_QWEN = vlm_family("qwen3_vl qwen3_vl_moe", "LanguageModel.__call__")

PATCH = Patch(
    id="chunk-inputs",
    formerly="piece-inputs",
    every_model=True,
    changes_solo=True,
    targets=(
        *argument(_GEMMA, "per_layer_inputs", select_inputs, when=has_inputs),
        *argument(_QWEN, "n_to_process", drop_without_mask, when=is_chunk_of_text),
    ),
)
