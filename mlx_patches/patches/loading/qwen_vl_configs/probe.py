"""Reads a config as transformers 5 saves it."""

from typing import Any

from ....probes.kit import SIZES, Result, Target, family_of, module_of, require_own

THETA, SECTIONS = 5e6, [2, 3, 3]


def save_config(family: str) -> dict[str, Any]:
    """The content of ``config.json`` of a tiny model."""
    text = {
        **SIZES,
        "model_type": f"{family}_text",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA, "mrope_section": SECTIONS},
    }
    vision = {"model_type": f"{family}_vision", "depth": 2, "hidden_size": 32, "num_heads": 2}
    return {"model_type": family, "text_config": text, "vision_config": vision}


def probe(target: Target) -> Result:
    """Red if the config is refused, or if a setting is another than was saved."""
    require_own(target)
    family = family_of(target)
    module = module_of(target)
    saved = save_config(family)
    module.ModelConfig.from_dict(saved)
    # The release then reads both parts from the same dictionary.
    text = module.TextConfig.from_dict(saved["text_config"])
    vision = module.VisionConfig.from_dict(saved["vision_config"])
    read = (text.hidden_size, text.rope_theta, (text.rope_scaling or {}).get("mrope_section"))
    wrong = read != (64, THETA, SECTIONS) or vision.model_type != family
    return Result(wrong, f"width, base, sections: {read}; tower {vision.model_type}")
