"""Reads a config as transformers 5 saves it."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

from ....probes.kit import SIZES, Result, Target, family_of, make_module, module_of, require_own

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
    family = family_of(target)
    module = module_of(target)
    if target.name == "Model.sanitize":
        return probe_weights(module.Model)
    if family == "kimi_k25":
        return probe_kimi(getattr(module, target.name.partition(".")[0]))
    require_own(target)
    if family == "molmo2":
        return probe_molmo(module)
    if family == "ernie4_5_moe_vl":
        return probe_ernie(module)
    if target.name.startswith("Vision"):
        return probe_tower(module)
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


def probe_tower(module: Any) -> Result:
    """Red if the vision tower of a saved Qwen3.5 is not supported."""
    config = import_module(module.__name__.replace(".vision", ".config")).VisionConfig
    sizes = {"depth": 1, "hidden_size": 32, "num_heads": 2}
    for kind in ("qwen3_5", "qwen3_5_moe"):
        module.VisionModel(config.from_dict({"model_type": f"{kind}_vision", **sizes}))
    return Result(False, "builds the towers")


def probe_kimi(kind: Any) -> Result:
    """Red if Kimi K2.5's image token, or the size of its tower, is another than was saved."""
    if kind.__name__ == "ModelConfig":
        token = kind.from_dict(
            {"text_config": {}, "vision_config": {}, "model_type": "kimi_k25", "image_token_id": 7}
        ).image_token_index
        return Result(token != 7, f"the image token is {token}")
    tower = {"model_type": "kimi_k25_vision", "hidden_size": 32, "num_hidden_layers": 1}
    made = kind.from_dict({**tower, "num_attention_heads": 2, "pos_emb_height": 8})
    read = [made.model_type, made.embed_dim, made.depth, made.num_heads, made.init_pos_emb_height]
    return Result(read != ["moonvit", 32, 1, 2, 8], f"the tower: {read}")


def probe_weights(kind: Any) -> Result:
    """Red if a model's sanitize does not know the names of saved weights."""
    saved = "model.vision_model.x", "model.mm_projector.x", "language_model.model.blocks.0.x"
    part = SimpleNamespace(sanitize=lambda weights: weights)
    model = make_module(kind, vision_tower=part, language_model=part)
    made = list(kind.sanitize(model, dict.fromkeys(saved)))
    wrong = any("model.vision" in name or "model.mm" in name or "blocks" in name for name in made)
    return Result(wrong, f"the weights: {made}")


def probe_ernie(module: Any) -> Result:
    """Red if ERNIE 4.5 VL's experts, tower or RoPE are others than were saved."""
    kinds = ["dense", "sparse", "sparse", "dense"]
    rope = {"rope_type": "default", "rope_theta": THETA, "mrope_section": SECTIONS}
    text = {"hidden_size": 64, "moe_num_experts": 4, "mlp_layer_types": kinds}
    tower = {"hidden_size": 32, "intermediate_size": 96}
    saved = {
        "text_config": {**text, "rope_parameters": rope},
        "vision_config": tower,
        "image_token_id": 7,
    }
    whole = module.ModelConfig.from_dict(saved)
    own = module.TextConfig.from_dict(saved["text_config"])
    vision = module.VisionConfig.from_dict(tower)
    layers = [own.moe_layer_start_index, own.moe_layer_end_index]
    read = [own.hidden_size, own.moe_num_experts, layers, own.rope_theta, own.mrope_section]
    read += [whole.image_token_id, whole.pixel_hidden_size, vision.embed_dim, vision.mlp_ratio]
    wrong = read != [64, [4, 4], [1, 2], THETA, SECTIONS, 7, 32, 32, 3]
    return Result(wrong, f"experts, layers, RoPE, token and tower: {read}")
