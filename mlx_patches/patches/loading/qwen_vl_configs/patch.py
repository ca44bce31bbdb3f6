"""Qwen-VL, ERNIE-VL, Kimi K2.5, Molmo 2, PaddleOCR-VL from transformers 5 do not load in mlx-vlm.

Why: Transformers 5 nests the text model's settings, calls the vision tower's type
    ``qwen2_vl_vision``, and writes the sections of M-RoPE under ``rope_parameters``. Molmo 2's
    tower and adapter, and ERNIE 4.5 VL's and Kimi K2.5's settings and weights have other names too.
    mlx-vlm reads only the names of published folders.
How: Before the config is read, the old names are added to it. Weights are renamed.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm reads the new names.
"""

from typing import Any

from ....core.verbs import Patch, before, tensors
from ..._shared.configs import Params, config_target

_VISION, _TOKEN = "_vision", "image_token_id"
_ERNIE = "ernie4_5_moe_vl"
_FLAT = ("qwen2_vl", "qwen2_5_vl", "paddleocr_vl")
# The names of Molmo 2's settings in transformers 5, and those in published folders.
_MOLMO = {
    "patch_size": "image_patch_size",
    "num_position_embeddings": "image_num_pos",
    "image_size": "image_default_input_size",
    "vision_feature_layer": "vit_layers",
    "rms_norm_eps": "layer_norm_eps",
    "attention_bias": "qkv_bias",
}
# The names of the settings of Kimi K2.5's tower in transformers 5, and those in published folders.
_KIMI = {
    "hidden_size": "embed_dim",
    "num_hidden_layers": "depth",
    "num_attention_heads": "num_heads",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
}
# The beginnings of the names of weights, Kimi K2.5's and ERNIE 4.5 VL's.
_WEIGHTS = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "model.mm_projector.": "mm_projector.",
    "model.vision_model.": "vision_model.",
}


def add_old_names(cls: Any, params: Any, /) -> None:
    """Add the old names to the content of ``config.json``, in place as the release does."""
    text, vision = params.get("text_config"), params.get("vision_config")
    if isinstance(vision, dict) and str(vision.get("model_type")).endswith(_VISION):
        vision["model_type"] = vision["model_type"].removesuffix(_VISION)
    if not isinstance(text, dict):
        return
    text.update(find_old_rope(text))
    if params.get("model_type") in _FLAT:
        for name, value in text.items():
            params.setdefault(name, value)


def name_tower(tower: Any, config: Any, /) -> None:
    """Name the type of Qwen3.5's vision tower as published folders do."""
    config.model_type = str(config.model_type).removesuffix(_VISION)


def add_ernie_names(cls: Any, params: Any, /) -> None:
    """Add the old names to ERNIE 4.5 VL's ``config.json``, which also counts experts of images."""
    text, vision = params.get("text_config"), params.get("vision_config")
    if not isinstance(text, dict) or "mlp_layer_types" not in text:
        return  # a published folder's
    width, count = vision["hidden_size"], text["moe_num_experts"]
    vision |= {"embed_dim": width, "mlp_ratio": vision["intermediate_size"] / width}
    sparse = [at for at, kind in enumerate(text["mlp_layer_types"]) if kind == "sparse"]
    old = find_old_rope(text) | {
        "moe_num_experts": [count, count],
        "moe_layer_start_index": sparse[0],
        "moe_layer_end_index": sparse[-1],
        "im_patch_id": params[_TOKEN],
        "pixel_hidden_size": width,
    }
    for name, value in (text | old).items():
        params.setdefault(name, value)


def add_molmo_names(cls: Any, params: Any, /) -> None:
    """Add the old names to Molmo 2's ``config.json``, whose tower and adapter were one part."""
    vision = params.get("vision_config")
    if not isinstance(vision, dict) or not vision.keys() & _MOLMO.keys():
        return  # a published folder's, in which mlx-vlm itself puts both together
    adapter, text = (params.get(f"{part}_config") or {} for part in ("adapter", "text"))
    for part in (vision, adapter, text):
        part.update({old: part[new] for new, old in _MOLMO.items() if part.get(new) is not None})
    text.update(find_old_rope(text))
    params["vision_config"] = {"vit_config": vision, "adapter_config": adapter}


def name_kimi_token(params: Params) -> Params:
    """The content of Kimi K2.5's ``config.json``, with the old name of the image token."""
    token = params.get(_TOKEN)
    return params if token is None else {"media_placeholder_token_id": token, **params}


def name_kimi_tower(params: Params) -> Params:
    """The content of a Kimi K2.5 tower's config, with the old names."""
    if params.get("model_type") != "kimi_k25_vision":
        return params
    old = {old: params[new] for new, old in _KIMI.items() if new in params}
    return {**params, **old, "model_type": "moonvit"}


def rename_weights(weights: dict[str, Any]) -> dict[str, Any]:
    """The weights under their published names."""
    renamed = {}
    for name, value in weights.items():
        new = next((new for new in _WEIGHTS if name.startswith(new)), "")
        renamed[_WEIGHTS.get(new, "") + name.removeprefix(new)] = value
    return renamed


def find_old_rope(text: dict[str, Any]) -> dict[str, Any]:
    """The rope parameters of a text model under their old names, if it has only the new one."""
    rope = text.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" in text:
        return {}
    scaling = {"type": rope.get("rope_type", "default"), **rope}
    return {"rope_theta": rope.get("rope_theta"), "rope_scaling": scaling}


PATCH = Patch(
    id="qwen-vl-configs",
    severity="crash",
    every_model=True,
    changes_solo=True,
    targets=(
        *before(
            [
                f"mlx_vlm.models.{family}.config:ModelConfig.from_dict"
                for family in (*_FLAT, "qwen3_vl", "qwen3_vl_moe")
            ],
            add_old_names,
        ),
        *before("mlx_vlm.models.qwen3_vl.vision:VisionModel.__init__", name_tower),
        *before(f"mlx_vlm.models.{_ERNIE}.config:ModelConfig.from_dict", add_ernie_names),
        *before("mlx_vlm.models.molmo2.config:ModelConfig.from_dict", add_molmo_names),
        config_target("mlx-vlm", "kimi_k25", name_kimi_token),
        config_target("mlx-vlm", "kimi_k25", name_kimi_tower, kind="VisionConfig"),
        *tensors(
            [f"mlx_vlm.models.{one}.{one}:Model.sanitize" for one in ("kimi_k25", _ERNIE)],
            rename_weights,
        ),
    ),
)
