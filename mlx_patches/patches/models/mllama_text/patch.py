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


def skip_layer(call: Function, layer: Any, hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
    return hidden_states


def lacks_image(cross_attention_states: Any, cache: Any) -> bool:
    return cross_attention_states is None and getattr(cache, "keys", None) is None


PATCH = Patch(
    id="mllama-text",
    targets=wrap(
        vlm_family("mllama", _LAYER),
        skip_layer,
        fingerprint_of=(_LAYER, "MllamaTextModel.__call__"),
        when=lacks_image,
    ),
    probe="mlx_patches.probes.reads_ahead:probe",
)
