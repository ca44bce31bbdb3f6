"""Applies the activation of a vision tower's layer, and compares it with the function on paper."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import family_of
from ....probes.fixtures import require_own

# By family, the type of tower of published configs; the shared layer is tried as idefics2's.
TYPES = {"mlp": "idefics2", "llama4": "llama4_vision_model"}
SIGLIP = "siglip_vision_model"
# Towers of these families are CLIP's in published configs, but may be SigLIP's.
INPUTS = (-3.0, -1.7, -0.6, 0.4, 1.9)
# Between the approximation and the exact function there are 5e-4.
TOLERANCE = 5e-5


def probe(target: Target) -> Result:
    """Red if a layer's activation is another function than its tower's."""
    require_own(target)
    import mlx.core as mx

    family = family_of(target)
    module = importlib.import_module(target.module)
    if "." not in target.name:
        activation, expected = require_own(target)("gelu_pytorch_tanh"), approximate
    else:
        kind = getattr(module, target.name.partition(".")[0])
        activation = kind(config_of(TYPES.get(family, SIGLIP))).activation_fn
        expected = exact if family == "llama4" else approximate
    if activation is None:
        raise NotApplicable("the layer has no activation of its own")
    said = activation(mx.array(INPUTS)).tolist()
    worst = max(abs(a - expected(x)) for a, x in zip(said, INPUTS, strict=True))
    return Result(not worst < TOLERANCE, f"off by {worst:.2g}", worst)


def config_of(tower: str) -> Any:
    """The config of a tiny tower of this type."""
    return SimpleNamespace(
        model_type=tower,
        hidden_size=4,
        intermediate_size=4,
        projector_input_dim=4,
        projector_output_dim=4,
    )


def exact(x: float) -> float:
    """GELU."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def approximate(x: float) -> float:
    """Its tanh approximation."""
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
