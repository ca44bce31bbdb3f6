"""Llama 3.2 Vision attends to later tokens in prompts without an image: wrong output.

Why: Without an image, the cross-attention layers have no image states to attend to. Releases use
    the text's own projected queries as keys and values, without a mask. Each token then attends to
    later ones, chunked prefill changes the logits, and both differ from the trained model.
How: If neither the call nor the cache has image states, these layers return their input unchanged.
Upstream: transformers skips these layers for text prompts. Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm skips them too.
"""

from typing import Any

from ....core.verbs import Function, Patch, vlm_family, wrap

_LAYER = "MllamaCrossAttentionDecoderLayer.__call__"


def skip_without_image(
    call: Function,
    layer: Any,
    hidden_states: Any,
    cross_attention_states: Any,
    attention_mask: Any = None,
    full_text_row_masked_out_mask: Any = None,
    cache: Any = None,
) -> Any:
    if not has_image(cross_attention_states, cache):
        return hidden_states
    masks = attention_mask, full_text_row_masked_out_mask
    return call(layer, hidden_states, cross_attention_states, *masks, cache)


def has_image(states: Any, cache: Any) -> bool:
    return states is not None or getattr(cache, "keys", None) is not None


PATCH = Patch(
    id="mllama-text",
    targets=wrap(
        vlm_family("mllama", _LAYER),
        skip_without_image,
        fingerprint_of=(_LAYER, "MllamaTextModel.__call__"),
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
)
