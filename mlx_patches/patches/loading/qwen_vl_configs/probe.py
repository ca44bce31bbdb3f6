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
    if family == "molmo2":
        return probe_molmo(module)
    saved = save_config(family)
    module.ModelConfig.from_dict(saved)
    # The release then reads both parts from the same dictionary.
    text = module.TextConfig.from_dict(saved["text_config"])
    vision = module.VisionConfig.from_dict(saved["vision_config"])
    read = (text.hidden_size, text.rope_theta, (text.rope_scaling or {}).get("mrope_section"))
    wrong = read != (64, THETA, SECTIONS) or vision.model_type != family
    return Result(wrong, f"width, base, sections: {read}; tower {vision.model_type}")


def probe_molmo(module: Any) -> Result:
    """Red if Molmo 2's tower, adapter or text model has other settings than were saved.

    A published folder is read as before.
    """
    rope = {"rope_type": "default", "rope_theta": THETA}
    text = {"hidden_size": 64, "rms_norm_eps": 1e-5, "rope_parameters": rope}
    tower = {"num_hidden_layers": 2, "patch_size": 16, "image_size": [64, 64]}
    adapter = {"vision_feature_layer": [-1, -2]}
    published = {"vit_config": {"num_hidden_layers": 3}, "vision_config": {}}
    module.ModelConfig.from_dict(published)
    published_vision = module.VisionConfig.from_dict(published["vision_config"])
    if (count := published_vision.vit_config.num_hidden_layers) != 3:
        return Result(True, f"the tower of a published folder has {count} layers, not 3")
    saved = {"text_config": text, "vision_config": tower, "adapter_config": adapter}
    module.ModelConfig.from_dict(saved)
    vision = module.VisionConfig.from_dict(saved["vision_config"])
    vit, layers = vision.vit_config, vision.adapter_config.vit_layers
    own = module.TextConfig.from_dict(saved["text_config"])
    read = [vit.num_hidden_layers, vit.image_patch_size, layers, own.layer_norm_eps, own.rope_theta]
    return Result(read != [2, 16, [-1, -2], 1e-5, THETA], f"tower, adapter and text: {read}")
