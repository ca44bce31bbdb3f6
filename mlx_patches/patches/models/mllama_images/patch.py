"""Llama 3.2 Vision in mlx-vlm: images are read one layer late, and by the text before them.

Why: An image's features include the vision tower's state before five of its layers. mlx-vlm takes
    the state after them. Meta's model also zeroes the cross-attention of tokens before the first
    image; mlx-vlm lets them attend to every image.
How: The tower's encoder returns the states before its layers, and tokens whose mask hides all
    images pass the cross-attention layers unchanged.
Upstream: Not fixed in mlx-vlm 0.7.10. transformers 5 has both defects too; Meta's llama-models and
    vLLM have neither.
Retire when: mlx-vlm takes the states before the layers, and masks these tokens.
"""

from typing import Any

from ....core.verbs import Patch, mx, result, vlm_family

_LAYER = "MllamaCrossAttentionDecoderLayer.__call__"


def shift_states(found: Any, encoder: Any, /, hidden_states: Any) -> Any:
    """The encoder's output, and the state before each layer instead of after it."""
    output, states = found
    return output, (hidden_states, *states[:-1])


def skip_tokens(
    found: Any, layer: Any, /, hidden_states: Any, full_text_row_masked_out_mask: Any
) -> Any:
    """The layer's output; its input for tokens that see no image."""
    return mx.where(full_text_row_masked_out_mask[:, 0], found, hidden_states)


def has_mask(full_text_row_masked_out_mask: Any) -> bool:
    return full_text_row_masked_out_mask is not None


PATCH = Patch(
    id="mllama-images",
    every_model=True,
    wrong_solo="mllama",
    targets=(
        *result("mlx_vlm.models.mllama.vision:MllamaVisionEncoder.__call__", shift_states),
        *result(vlm_family("mllama", _LAYER), skip_tokens, when=has_mask),
    ),
)
