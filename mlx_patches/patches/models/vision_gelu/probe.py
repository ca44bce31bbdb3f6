"""Applies the activation of a vision tower's layer, and compares it with the function on paper."""

import math
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, family_of, module_of, mx, require_own

# By family, the type of tower of published configs; the shared layer is tried as idefics2's.
TYPES = {"mlp": "idefics2", "llama4": "llama4_vision_model", "internvl_chat": "intern_vit_6b"}
SIGLIP = "siglip_vision_model"
EXACT = ("internvl", "internvl_chat", "llama4", "multi_modality")
INPUTS = (-3.0, -1.7, -0.6, 0.4, 1.9)
# Between the approximation and the exact function there are 5e-4.
TOLERANCE = 5e-5


def probe(target: Target) -> Result:
    """Red if a layer's activation is another function than its tower's."""
    require_own(target)
    family = family_of(target)
    module = module_of(target)
    if "." not in target.name:
        activation, expected = require_own(target)("gelu_pytorch_tanh"), approximate
    elif family.startswith("minicpm"):
        activation, expected = module.MergerBlock(4, 4).act, exact
    elif family == "kimi_k25":
        activation, expected = module.MLP(4, 4).activation_fn, approximate
    elif family.startswith("qwen3"):
        is_block = target.name.startswith("MLP")
        sizes = (4, 4) if is_block else (config_of(SIGLIP),)
        activation = getattr(module, target.name.partition(".")[0])(*sizes).act_fn
        expected = approximate if is_block else exact
    else:
        kind = getattr(module, target.name.partition(".")[0])
        layer = kind(config_of(TYPES.get(family, SIGLIP)))
        activation = layer.activation if family == "internvl" else layer.activation_fn
        expected = exact if family in EXACT else approximate
    actual = activation(mx.array(INPUTS)).tolist()
    worst = max(abs(a - expected(x)) for a, x in zip(actual, INPUTS, strict=True))
    return Result(not worst < TOLERANCE, f"off by {worst:.2g}", worst)


def config_of(tower: str) -> Any:
    """The config of a tiny tower of this type."""
    sizes = dict.fromkeys(
        ("hidden_size", "intermediate_size", "projector_input_dim", "projector_output_dim"), 4
    ) | {"out_hidden_size": 4, "spatial_merge_size": 1}
    part = SimpleNamespace(model_type=tower, **sizes)
    vars(part).update(vision_config=part, text_config=part, downsample_ratio=0.5)
    return part


def exact(x: float) -> float:
    """GELU."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def approximate(x: float) -> float:
    """Its tanh approximation."""
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
