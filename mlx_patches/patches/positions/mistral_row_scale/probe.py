"""Batches tiny Ministral 3 and Mistral 4 models whose attention scale grows with position."""

from typing import Any

from ....probes.kit import Result, Target, measure_each, require_module, tiny

# The scale grows after each fourth position.
_ROPE = {"rope_theta": 10000.0, "rope_type": "default", "llama_4_scaling_beta": 0.5}
_FIELDS = {"rope_parameters": _ROPE | {"original_max_position_embeddings": 4}}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_MISTRAL4: dict[str, Any] = dict.fromkeys(_LATENT, 16) | {"qk_head_dim": 32}
_MISTRAL4 |= {"num_key_value_heads": 4, "layer_types": ["full_attention"] * 4}
# The defect uses the first row's scale for all rows: here that row is padded, or the longest.
_LENGTHS = ((5, 9), (9, 5, 2))


def build_model(model_type: str) -> Any:
    fields: dict[str, Any] = _FIELDS | (_MISTRAL4 if model_type == "mistral4" else {})
    return tiny("mlx-vlm", "mistral3", model_type=model_type, **fields)


def probe(target: Target) -> Result:
    """Red if a row's logits differ from those of its solo run."""
    require_module("mlx_vlm.models.mistral4.language")
    model = build_model("ministral3" if "Ministral3" in target.name else "mistral4")
    return measure_each(model, _LENGTHS)
