"""mlx-vlm: Qwen3-VL MoE, InternVL, Granite, Llama 4 and others use the wrong GELU on images.

Why: SigLIP towers and Molmo 2's use the tanh approximation of GELU, Llama 4's the exact function.
    mlx-vlm uses the sigmoid approximation in all of them, which belongs to CLIP. It differs by up
    to 0.02 per activation. InternVL, DeepSeek-VL and MiniCPM-V's merger use the exact function,
    mlx-vlm the tanh approximation.
    Qwen3-VL MoE's layers use the approximation and its mergers the exact function, mlx-vlm the
    reverse; the layers of Qwen3-Omni and Kimi K2.5 use the approximation too.
How: New layers of these towers get the activation that belongs to the tower's type.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: mlx-vlm reads ``hidden_act``, or uses each tower's default.
"""

from typing import Any

from ....core.verbs import Patch, after, result

# By type of tower, how MLX's GELU approximates: "none", "precise" (tanh) or "fast" (sigmoid).
APPROXIMATIONS = {
    "siglip_vision_model": "precise",
    "idefics2": "precise",
    "idefics2_vision": "precise",
    "llama4_vision_model": "none",
    "internvl_vision": "none",
    "intern_vit_6b": "none",
    "clip_vision_model": "fast",
}
# The same by the names that configs have for activations.
NAMED = {"gelu": "none", "gelu_pytorch_tanh": "precise", "quick_gelu": "fast"}


def set_activation(layer: Any, config: Any, /) -> None:
    """Give a new layer the activation of its tower."""
    import mlx.nn as nn

    if (approximation := find_approximation(config)) not in (None, "fast"):
        layer.activation_fn = nn.GELU(approx=approximation)


def set_projector_activation(projector: Any, /) -> None:
    import mlx.nn as nn

    projector.activation = nn.GELU(approx=PROJECTOR)


def set_block_activation(layer: Any, /) -> None:
    """Give a new vision layer of Qwen3-VL MoE or Qwen3-Omni its activation."""
    import mlx.nn as nn

    layer.act_fn = nn.GELU(approx=BLOCK)


def set_deepseek_activation(layer: Any, /) -> None:
    """Give a new vision layer of DeepSeek-VL its activation."""
    import mlx.nn as nn

    layer.activation_fn = nn.GELU(approx=PROJECTOR)


def set_kimi_activation(layer: Any, /) -> None:
    """Give a new vision layer of Kimi K2.5 its activation."""
    import mlx.nn as nn

    layer.activation_fn = nn.GELU(approx=BLOCK)


def set_merger_activation(merger: Any, /) -> None:
    import mlx.nn as nn

    merger.act_fn = nn.GELU(approx=PROJECTOR)


def set_minicpm_activation(merger: Any, /) -> None:
    """Give a new merger of MiniCPM-V 4.6 its activation."""
    import mlx.nn as nn

    merger.act = nn.GELU(approx=PROJECTOR)


def find_approximation(config: Any) -> str | None:
    """How a tower's activation approximates GELU; None if that is not known."""
    own = NAMED.get(str(getattr(config, "hidden_act", None)))
    return own or APPROXIMATIONS.get(str(getattr(config, "model_type", None)))


def make_named(activation: Any, name: Any, /) -> Any:
    """Molmo 2's activation of a name."""
    import mlx.nn as nn

    approximation = NAMED.get(name)
    return activation if approximation in (None, "fast") else nn.GELU(approx=approximation)


# The first: InternVL's projector, DeepSeek-VL's layers, the mergers of Qwen3-VL and MiniCPM-V; the
# second: the layers of Qwen3-VL's tower.
PROJECTOR, BLOCK = "none", "precise"
_FAMILIES = "idefics2 granite_vision granite4_vision internvl_chat llava llava_bunny llava_next"

PATCH = Patch(
    id="vision-gelu",
    every_model=True,
    wrong_solo="idefics2 granite_vision granite4_vision internvl llama4 llava_bunny molmo2"
    " qwen3_vl_moe qwen3_omni_moe kimi_k25 multi_modality",
    targets=(
        *after(
            (
                "mlx_vlm.models.mlp:FastGELUMLP.__init__",
                *(f"mlx_vlm.models.{family}.vision:MLP.__init__" for family in _FAMILIES.split()),
                "mlx_vlm.models.llama4.vision:Llama4VisionMLP.__init__",
            ),
            set_activation,
        ),
        *after(
            "mlx_vlm.models.internvl.internvl:MultiModalProjector.__init__",
            set_projector_activation,
        ),
        *after(
            [
                f"mlx_vlm.models.{one}.vision:MLP.__init__"
                for one in ("qwen3_vl_moe", "qwen3_omni_moe")
            ],
            set_block_activation,
        ),
        *after("mlx_vlm.models.multi_modality.vision:MLP.__init__", set_deepseek_activation),
        *after("mlx_vlm.models.kimi_k25.vision:MLP.__init__", set_kimi_activation),
        *after("mlx_vlm.models.qwen3_vl_moe.vision:PatchMerger.__init__", set_merger_activation),
        *after(
            "mlx_vlm.models.minicpmv4_6.minicpmv4_6:MergerBlock.__init__", set_minicpm_activation
        ),
        *result("mlx_vlm.models.molmo2.vision:_gelu_from_name", make_named),
    ),
)
