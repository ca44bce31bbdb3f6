"""Builds a tiny InternVL whose text config is Qwen2's."""

from ....probes.kit import SIZES, Result, Target, import_module, module_of, require_own

TEXT = SIZES | {"model_type": "qwen2", "rope_theta": 1e6, "tie_word_embeddings": False}
VISION = {"model_type": "internvl_vision", "hidden_size": 32, "intermediate_size": 48}
# What Qwen2's attention has.
WANTED = {f"{name}_proj.bias" for name in "qkv"}


def probe(target: Target) -> Result:
    """Red if the attention of the text model has other parameters than Qwen2's."""
    require_own(target)
    from mlx.utils import tree_flatten

    package = target.module.rpartition(".")[0]
    config = import_module(f"{package}.config")
    text = config.TextConfig.from_dict(dict(TEXT))
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    vision = config.VisionConfig.from_dict(VISION | sizes)
    made = config.ModelConfig(text_config=text, vision_config=vision, model_type="internvl")
    language = module_of(target).Model(made).language_model
    names = {name for name, _ in tree_flatten(language.model.layers[0].self_attn.parameters())}
    found = {name for name in names if not name.endswith("weight")} | {
        name for name in names if "norm" in name
    }
    return Result(found != WANTED, f"besides weights it has {sorted(found)}")
