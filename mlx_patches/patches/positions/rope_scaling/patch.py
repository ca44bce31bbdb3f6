"""Gemma, Cohere, Phi, Mixtral and others ignore rope_scaling: wrong positions, worst in long texts.

Why: ``rope_scaling``, in newer files ``rope_parameters``, is the scaling of positions with which a
    model was trained for a longer context. Many families ignore it and build a plain RoPE: in
    mlx-lm Qwen3 MoE, GLM 4 and LFM2; in mlx-vlm Qwen3.5 with YaRN; and up to mlx-vlm 0.6.13 Gemma 3
    (4B and larger), Llama 3.2 Vision and Granite Vision, whose published configs have a scaling.
    Every position but the first is wrong. Qwen2-VL, Qwen2.5-VL and Qwen3-VL do not load with
    YaRN, which their model cards describe for long texts.
How: The config object keeps the setting, and a config with sections of M-RoPE is read without it.
    An attention layer with a plain RoPE gets the one that the release's ``initialize_rope`` builds
    for the scaling; Qwen's rotary embedding gets its frequencies and its factor. Without a scaling
    nothing changes.
Upstream: mlx-vlm 0.6.14 for the vision models (#1710). Not fixed in mlx-lm 0.32.2 and mlx-vlm
    0.7.10 for the others.
Retire when: Every attention layer of a supported release reads its scaling.
"""

import importlib
from typing import Any

from ....core.verbs import Function, Patch, after, lm_family, vlm_family, wrap
from ..._shared.configs import FROM_DICT

KINDS = ("linear", "llama3", "yarn", "longrope")
_KEPT, _ORIGINAL, _LENGTH = (
    "_rope_scaling",
    "original_max_position_embeddings",
    "max_position_embeddings",
)


def keep_scaling(read: Function, cls: Any, params: Any) -> Any:
    """Read a config object; it keeps its scaling."""
    scaling = scaling_of(params)
    config = read(cls, params if scaling is None else hide_scaling(params))
    if scaling:
        config._rope_scaling = scaling
    return config


def hide_scaling(params: dict[str, Any]) -> dict[str, Any]:
    """The config without its scaling if it has sections of M-RoPE: Qwen-VL rejects both."""
    rope = params.get("rope_scaling")
    if not isinstance(rope, dict) or "mrope_section" not in rope:
        return params
    plain = {name: value for name, value in rope.items() if name != "rope_type"}
    return {**params, "rope_scaling": {**plain, "type": "default"}}


def scaling_of(params: Any) -> dict[str, Any] | None:
    rope = isinstance(params, dict) and (
        params.get("rope_scaling") or params.get("rope_parameters")
    )
    if not isinstance(rope, dict):
        return None
    full = rope.get("full_attention")
    rope = full if isinstance(full, dict) else rope
    kind = rope.get("rope_type") or rope.get("type")
    if kind not in KINDS:
        return None
    length = params.get(_LENGTH)
    original = params.get(_ORIGINAL) or length
    return {**({_ORIGINAL: original} if original else {}), **rope, "type": kind, _LENGTH: length}


def scale_rope(attention: Any, config: Any, /) -> None:
    scaling = getattr(config, _KEPT, None)
    # If the sliding layers have a separate base, the scaling applies only to the full layers.
    if scaling is None or (
        getattr(attention, "is_sliding", False) and hasattr(config, "rope_local_base_freq")
    ):
        return
    import mlx.nn as nn

    rotary = getattr(attention, "rotary_emb", None)
    if hasattr(rotary, "mrope_section"):
        scale_sections(attention, rotary, scaling)
    elif type(getattr(attention, "rope", None)) is nn.RoPE and attention.rope.scale == 1:
        rope = attention.rope
        base = rope.base or scaling.get("rope_theta")
        attention.rope = make_rope(rope.dims, base, rope.traditional, scaling, type(attention))


def make_rope(
    dims: int, base: float, traditional: bool, scaling: dict[str, Any], kind: type
) -> Any:
    """Build the RoPE for a scaling with the release of the attention class."""
    package = kind.__module__.partition(".")[0]
    try:
        ropes = importlib.import_module(f"{package}.models.rope_utils")
        make = ropes.initialize_rope
    except (ImportError, AttributeError):  # earlier mlx-vlm releases use mlx-lm's
        make = importlib.import_module("mlx_lm.models.rope_utils").initialize_rope
    return make(dims, base, traditional, scaling, scaling[_LENGTH])


def scale_sections(attention: Any, rotary: Any, scaling: dict[str, Any]) -> None:
    """Scale the frequencies of a rotary embedding with one section per image axis."""
    rope = make_rope(rotary.dim, rotary.base, False, scaling, type(attention))
    if not hasattr(rope, "_freqs"):
        return
    if hasattr(rotary, "_inv_freq"):
        rotary._inv_freq = 1 / rope._freqs
    else:
        rotary.inv_freq = 1 / rope._freqs
    factor = getattr(rope, "mscale", getattr(rope, "_scale", 1.0))
    if hasattr(rotary, "attention_scaling"):
        rotary.attention_scaling = factor
        rotary.fused_apply = False  # the Metal kernel ignores the factor
    else:
        attention.rotary_emb = lambda x, places: [part * factor for part in rotary(x, places)]


# Classes of one family, in both packages.
_OWN_NAMES = {
    "Glm4Attention": "glm4",
    "HeliumAttention": "helium",
    "MiniMaxAttention": "minimax",
    "MixtralAttention": "mixtral",
    "PhiAttention": "phi",
}
_LM = {
    "Attention": "cohere cohere2 ernie4_5 ernie4_5_moe gemma gemma2 gemma3_text glm4_moe gpt_neox"
    " lfm2 lfm2_moe qwen3_moe stablelm starcoder2",
    **_OWN_NAMES,
}
_VLM = {
    "Attention": "cohere cohere2 cohere2_moe ernie4_5 ernie4_5_moe gemma gemma2 gemma3 glm4_moe"
    " gpt_neox granite4_vision granite_vision idefics2 idefics3 lfm2 pixtral qwen2_5_vl qwen2_vl"
    " qwen3_moe qwen3_vl qwen3_vl_moe stablelm starcoder2",
    **_OWN_NAMES,
    "MllamaTextSelfAttention": "mllama",
    "Qwen3_5Attention": "qwen3_5",
}

PATCH = Patch(
    id="rope-scaling",
    every_model=True,
    changes_solo=True,
    targets=(
        *wrap(FROM_DICT, keep_scaling, supports=True),
        *after(
            [
                place
                for classes, family in ((_LM, lm_family), (_VLM, vlm_family))
                for kind, families in sorted(classes.items())
                for place in family(families, f"{kind}.__init__")
            ],
            scale_rope,
        ),
    ),
)
