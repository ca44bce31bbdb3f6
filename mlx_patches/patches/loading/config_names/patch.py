"""LFM2.5, Nemotron-H, Granite 4, Llama 4, Pixtral, GLM-OCR do not load: unknown config names.

Why: LFM2.5 has ``intermediate_size`` instead of ``block_ff_dim``. Newer Nemotron-H configs have a
    list of layer types, with new names, instead of a pattern and a number of layers. A Granite 4
    hybrid that transformers 5 saved has these new names too. In transformers, Pixtral's type is
    ``llava`` and Granite Vision's ``llava_next``; mlx-vlm's have no such vision towers, and LLaVA's
    processor omits the row ends of an image. ERNIE 4.5 VL's type has another name too. mlx-vlm
    0.4 has no chat format for Granite Vision. Its GLM-OCR rejects the RoPE parameters of the tower;
    its Llama 4 needs a field that transformers 5 drops. Qwen4-Exp's full attention has a new name.
    Gemma 3's number of tokens per image is read from the text part, where no config has it. An
    Inkling that transformers saved has other names of its widths. The type of Nemotron 3 Nano Omni
    has capitals, by which chats in mlx-vlm 0.6 do not find its format, and drop images and sounds.
How: The missing old keys are added from the new ones before the config class reads them, and
    Granite's layer types get their old names. A LLaVA with Pixtral's tower gets Pixtral's type and
    processor, a LLaVA-NeXT with a Granite model that of Granite Vision, and LLaVA's chat format;
    ERNIE's gets the old name. GLM-OCR's tower is read without the RoPE parameters, which it does
    not need, and Llama 4's with a value of the field, which it ignores. Gemma 3's text part gets
    the number of tokens, Inkling's the published names, and Nemotron's type has no capitals.
Upstream: mlx-lm 0.31.2 reads Nemotron-H's list, 0.32.0 its new names and LFM2.5's key. Granite's
    are not read in mlx-lm 0.32.2 and mlx-vlm 0.7.10, nor the types, nor Llama 4's field, nor
    Qwen4-Exp's name, nor Gemma 3's number, nor Inkling's names. mlx-vlm 0.5 has the chat format,
    and 0.6.16 finds Nemotron's.
Retire when: No supported release is older than mlx-lm 0.32, and the others are read.
"""

import json
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ....core.verbs import Function, Patch, argument, refusal, result, wrap
from ..._shared.configs import Params, config_target

_FEED_FORWARD, _TOKEN = "intermediate_size", "image_token_index"
_LETTERS = {
    "full_attention": "*",
    "attention": "*",
    "linear_attention": "M",
    "mamba": "M",
    "conv": "M",
    "moe": "E",
    "mlp": "-",
}
_PIXTRAL = "pixtral"
_LLAVA = "mlx_vlm.models.llava.processing_llava:LlavaProcessor.from_pretrained"
_ROPE, _LAYER = "rope_parameters", "vision_feature_layer"
# A published type, one of a config's parts and its type: the family that reads it.
_NAMES = {
    ("llava", "vision_config", "pixtral"): _PIXTRAL,
    ("llava_next", "text_config", "granite"): "granite_vision",
    ("ernie4_5_vl_moe", "text_config", "ernie4_5_vl_moe_text"): "ernie4_5_moe_vl",
}
# The part of DeepSeek-VL's config whose fields mlx-vlm reads as ``text_config``.
_LANGUAGE = "language_config"
# The family that has the same chat format as Granite Vision.
_FORMAT = "llava"
_INDEXED = "indexed_attention"
_COUNT = "mm_tokens_per_image"
# Published names of an Inkling's widths, and those of transformers; one name is both.
_WIDTHS = {
    "dense_intermediate_size": _FEED_FORWARD,
    _FEED_FORWARD: "moe_intermediate_size",
    "sconv_kernel_size": "conv_kernel_size",
}
# The type of Nemotron 3 Nano Omni in published folders.
_CAPITALS = "NemotronH_Nano_Omni_Reasoning_V3"
_OLD_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}


def lfm2(params: Params) -> Params:
    """The content of an LFM2 or LFM2.5 config, with the keys of LFM2."""
    if params.get("block_ff_dim") is None and params.get(_FEED_FORWARD) is not None:
        return {**params, "block_ff_dim": params[_FEED_FORWARD]}
    return params


def lfm2_vl(params: Params) -> Params:
    token = params.get("image_token_id")
    return params if token is None else {_TOKEN: token, **params}


def nemotron_h(params: Params) -> Params:
    pattern: Any = params.get("hybrid_override_pattern")
    kinds = params.get("layers_block_type") or params.get("layer_types")
    if pattern is None and kinds:
        unknown = sorted(set(kinds).difference(_LETTERS))
        if unknown:
            raise refusal(ValueError(f"unknown layer types in the Nemotron-H config: {unknown}"))
        pattern = [_LETTERS[kind] for kind in kinds]
        # Releases that read the list themselves know fewer names.
        params = {name: value for name, value in params.items() if name != "layers_block_type"}
    if pattern is None:
        return params
    number = params.get("num_hidden_layers") or len(pattern)
    return {**params, "hybrid_override_pattern": pattern, "num_hidden_layers": number}


def granitemoehybrid(params: Params) -> Params:
    """The content of a Granite 4 hybrid config, with the old names of its layer types."""
    if kinds := params.get("layer_types"):
        return {**params, "layer_types": [_OLD_KINDS.get(kind, kind) for kind in kinds]}
    return params


def glm_ocr(params: Params) -> Params:
    """The content of a GLM-OCR config, without the RoPE parameters of its tower."""
    if isinstance(vision := params.get("vision_config"), dict):
        known = {name: value for name, value in vision.items() if name != _ROPE}
        return {**params, "vision_config": known}
    return params


def llama4(params: Params) -> Params:
    """The content of a Llama 4 tower's config, with a field that mlx-vlm needs and ignores."""
    return {_LAYER: -1, **params}


def qwen4_exp(params: Params) -> Params:
    """The content of a Qwen4-Exp config or of its text's, with the published names of layers."""
    if isinstance(text := params.get("text_config"), dict):
        return {**params, "text_config": qwen4_exp(text)}
    kinds = params.get("layer_types") or []
    if _INDEXED not in kinds:
        return params
    named = ["full_attention" if kind == _INDEXED else kind for kind in kinds]
    return {**params, "layer_types": named}


def inkling(params: Params) -> Params:
    """The content of an Inkling text's config, with the published names of its widths."""
    if "moe_intermediate_size" not in params:
        return params
    return params | {name: params[new] for name, new in _WIDTHS.items() if new in params}


def name_family(config: Any) -> Any:
    """The content of ``config.json``, with the type and fields by which mlx-vlm knows the model."""
    if config.get("model_type") == "multi_modality" and _LANGUAGE in config:
        return {"text_config": config[_LANGUAGE], **config}
    if config.get("model_type") == _CAPITALS:
        return {**config, "model_type": _CAPITALS.lower()}
    for (kind, part, inner), name in _NAMES.items():
        if config.get("model_type") == kind and (config.get(part) or {}).get("model_type") == inner:
            if name == _PIXTRAL:
                with suppress(ImportError):  # its processor is that of such folders
                    import_module(_LLAVA.partition(":")[0])
            return {**config, "model_type": name}
    if config.get("model_type") == "gemma3" and config.get(_COUNT) and config.get("text_config"):
        return {**config, "text_config": {_COUNT: config[_COUNT], **config["text_config"]}}
    return config


def load_processor(call: Function, kind: Any, folder: Any, **options: Any) -> Any:
    """The processor of a LLaVA folder, which is Pixtral's if the tower is."""
    path = Path(folder, "config.json")
    config = json.loads(path.read_text()) if path.exists() else {}
    if name_family(config).get("model_type") != _PIXTRAL:
        return call(kind, folder, **options)
    module = import_module("mlx_vlm.models.pixtral.processing_pixtral")
    return module.PixtralProcessor.from_pretrained(folder, **options)


def name_format(model_name: str) -> str:
    return _FORMAT if model_name in ("granite_vision", "granite4_vision") else model_name


PATCH = Patch(
    id="config-names",
    every_model=True,
    targets=(
        config_target("mlx-lm", "lfm2", lfm2),
        config_target("mlx-lm", "nemotron_h", nemotron_h),
        config_target("mlx-lm", "granitemoehybrid", granitemoehybrid),
        config_target("mlx-vlm", "granitemoehybrid", granitemoehybrid),
        config_target("mlx-vlm", "lfm2_vl", lfm2, kind="TextConfig"),
        config_target("mlx-vlm", "lfm2_vl", lfm2_vl),
        config_target("mlx-vlm", "glm_ocr", glm_ocr),
        config_target("mlx-vlm", "llama4", llama4, kind="VisionConfig"),
        *argument("mlx_vlm.models.qwen4_exp.config:ModelConfig.from_dict", "params", qwen4_exp),
        config_target("mlx-vlm", "qwen4_exp", qwen4_exp, kind="TextConfig"),
        config_target("mlx-vlm", "inkling", inkling, kind="TextConfig"),
        *result("mlx_vlm.utils:load_config", name_family),
        *wrap(_LLAVA, load_processor),
        *argument(
            "mlx_vlm.prompt_utils:MessageFormatter.__init__",
            "model_name",
            name_format,
            supports=True,
        ),
    ),
)
