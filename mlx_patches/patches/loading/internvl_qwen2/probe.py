"""Builds tiny InternVL models whose text config is Qwen2's or Llama's."""

from ....probes.kit import SIZES, Result, Target, import_module, module_of, require_own

TEXT = SIZES | {"rope_theta": 1e6, "tie_word_embeddings": False}
VISION = {"model_type": "internvl_vision", "hidden_size": 32, "intermediate_size": 48}
# By type, the biases and norms of the attention.
WANTED = {"qwen2": {f"{name}_proj.bias" for name in "qkv"}, "llama": set[str]()}


def probe(target: Target) -> Result:
    """Red if the attention of the text model has other parameters than its type's."""
    require_own(target)
    found = {kind: find_parameters(target, kind) for kind in WANTED}
    return Result(found != WANTED, f"besides weights they have {found}")


def find_parameters(target: Target, kind: str) -> set[str]:
    """The biases and norms of the attention in a model with this type of text config."""
    from mlx.utils import tree_flatten

    package = target.module.rpartition(".")[0]
    config = import_module(f"{package}.config")
    text = config.TextConfig.from_dict(TEXT | {"model_type": kind})
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    vision = config.VisionConfig.from_dict(VISION | sizes)
    made = config.ModelConfig(text_config=text, vision_config=vision, model_type="internvl")
    language = module_of(target).Model(made).language_model
    names = {name for name, _ in tree_flatten(language.model.layers[0].self_attn.parameters())}
    return {name for name in names if not name.endswith("weight") or "norm" in name}
