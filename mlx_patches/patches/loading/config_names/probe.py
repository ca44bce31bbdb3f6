"""Reads configs with the old and with the new names of their options."""

import inspect
import json
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from ....lab.shrink import small_config
from ....probes.kit import Result, Target, module_of

Fields = dict[str, Any]
# By module: a few fields of a config, others under their old names, and those under the new ones.
CASES: dict[str, tuple[Fields, Fields, Fields]] = {
    "lfm2": (
        {"layer_types": ["conv", "full_attention"] * 2, "full_attn_idxs": [1, 3]},
        {"block_ff_dim": 48},
        {"intermediate_size": 48},
    ),
    "nemotron_h": (
        {"time_step_limit": [0.0, 100.0]},
        {"hybrid_override_pattern": ["M", "*", "M", "-"], "num_hidden_layers": 4},
        {"layers_block_type": ["linear_attention", "full_attention", "mamba", "mlp"]},
    ),
}

INKLING = {"intermediate_size": 96, "moe_intermediate_size": 32, "conv_kernel_size": 3}
NEMOTRON = "NemotronH_Nano_Omni_Reasoning_V3"
GRANITE = ("granite_vision", "granite4_vision")


def probe(target: Target) -> Result:
    """Red if a config with the new names is not loaded, or builds other layers."""
    module = module_of(target)
    if target.module == "mlx_vlm.utils":
        pixtral(module)
        found = gemma3(module)
        return found if found.red else nemotron(module)
    if target.name == "LlavaProcessor.from_pretrained":
        return processor(module)
    if target.module == "mlx_vlm.prompt_utils":
        pixtral(import_module("mlx_vlm.utils"))  # the new type, which needs a chat format
        return chat(module)
    if "glm_ocr" in target.module:
        module.ModelConfig.from_dict({"text_config": {}, "vision_config": {"rope_parameters": {}}})
        return Result(False, "the tower's RoPE parameters are accepted")
    if "lfm2_vl" in target.module and target.name.startswith("Model"):
        whole = {"text_config": {}, "vision_config": {}, "image_token_id": 7}
        token = module.ModelConfig.from_dict(whole).image_token_index
        return Result(token != 7, f"the image token is {token}")
    if "lfm2_vl" in target.module:
        text = {"layer_types": ["conv"], "intermediate_size": 48}
        width = module.TextConfig.from_dict(text).block_ff_dim
        return Result(width != 48, f"the feed-forward layers have a width of {width}")
    if "llama4" in target.module:
        names = inspect.signature(module.VisionConfig).parameters
        numbers = {name: 1 for name in names if name != "vision_feature_layer"}
        module.VisionConfig.from_dict(numbers)
        return Result(False, "a tower without vision_feature_layer is accepted")
    if "qwen4_exp" in target.module:
        kind = module.TextConfig
        text = {**small_config(kind), "num_hidden_layers": 1, "layer_types": ["indexed_attention"]}
        whole = {"model_type": "qwen4_exp", "text_config": text}
        own = target.name.startswith("Model")
        module.ModelConfig.from_dict(whole) if own else kind.from_dict(text)
        return Result(False, "the new name of full attention is accepted")
    if "inkling" in target.module:
        given = module.TextConfig.from_dict(INKLING)
        widths = (given.dense_intermediate_size, given.intermediate_size, given.sconv_kernel_size)
        return Result(widths != (96, 32, 3), f"widths of {widths}")
    if "granitemoehybrid" in target.module:
        kind = getattr(module, target.name.partition(".")[0])
        layers = ["linear_attention", "full_attention"] * 2
        args = kind.from_dict({**small_config(kind), "layer_types": layers})
        return Result(set(args.layer_types) != {"mamba", "attention"}, f"{args.layer_types}")
    fields, old, new = CASES[target.module.rpartition(".")[2]]
    config = {**small_config(module.ModelArgs), **fields}
    wanted = _layers_of(module, config | old)
    for name in old.keys() & config.keys():
        del config[name]
    try:
        given = _layers_of(module, config | new)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        return Result(True, f"the config is not loaded: {type(error).__name__}: {error}")
    detail = "both build the same layers" if given == wanted else f"{given}, not {wanted}"
    return Result(given != wanted, detail)


def pixtral(utils: Any) -> None:
    """Build the vision tower of a Pixtral that transformers saved."""
    tower = {"model_type": "pixtral", "num_hidden_layers": 1, "hidden_size": 32}
    tower |= {"intermediate_size": 32, "num_attention_heads": 2, "image_size": 32, "patch_size": 16}
    kind = load(utils, {"model_type": "llava", "vision_config": tower})["model_type"]
    made = import_module(f"mlx_vlm.models.{kind}.config").VisionConfig.from_dict(tower)
    import_module(f"mlx_vlm.models.{kind}.vision").VisionModel(made)


def gemma3(utils: Any) -> Result:
    """Red if a Gemma 3 has another number of tokens per image than its config."""
    count = {"mm_tokens_per_image": 16}
    config = load(utils, {"model_type": "gemma3", "text_config": {"head_dim": 8}, **count})
    kind = import_module("mlx_vlm.models.gemma3.config").TextConfig
    given = kind.from_dict({**small_config(kind), **config["text_config"]}).mm_tokens_per_image
    return Result(given != 16, f"{given} tokens per image, 16 in the config")


def nemotron(utils: Any) -> Result:
    """Red if a chat of a Nemotron 3 Nano Omni loses its image."""
    prompts: Any = import_module("mlx_vlm.prompt_utils")
    if NEMOTRON.lower() not in prompts.MODEL_CONFIG:
        return Result(False, "there is no Nemotron 3 Nano Omni")
    config = load(utils, {"model_type": NEMOTRON})
    chat = prompts.apply_chat_template(None, config, "x", num_images=1, return_messages=True)
    return Result("image" not in str(chat), f"the chat is {chat}")


def load(utils: Any, config: Fields) -> Fields:
    """The content of a folder's config.json, as the release loads it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        found: Fields = utils.load_config(Path(folder))
    return found


def processor(llava: Any) -> Result:
    """Red if a LLaVA with Pixtral's tower does not get Pixtral's processor."""
    pixtral = import_module("mlx_vlm.models.pixtral.processing_pixtral").PixtralProcessor
    config = {"model_type": "llava", "vision_config": {"model_type": "pixtral"}}
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(pixtral, "from_pretrained") as made,
        suppress(Exception),  # there is no tokenizer
    ):
        (Path(folder) / "config.json").write_text(json.dumps(config))
        llava.LlavaProcessor.from_pretrained(folder)
    return Result(not made.called, f"{'Pixtral' if made.called else 'LLaVA'}'s processor is made")


def chat(prompts: Any) -> Result:
    """Red if there is no chat format for Granite Vision."""
    own = (prompts.get_message_json(name, "x", num_images=1) for name in GRANITE)
    kinds = [[part["type"] for part in one["content"]] for one in own]
    wanted = [["text", "image"]] * len(kinds)
    return Result(kinds != wanted, f"{kinds}")


def _layers_of(module: Any, config: dict[str, Any]) -> list[str]:
    from mlx.utils import tree_flatten

    parameters = module.Model(module.ModelArgs.from_dict(config)).parameters()
    return [f"{name} {value.shape}" for name, value in tree_flatten(parameters)]
