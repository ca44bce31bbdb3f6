"""Granite and Gemma 4 checkpoints do not load: they have tensors that the model lacks.

Why
    Granite 8B and Granite 4 hybrid are published with an ``lm_head`` that is tied to the
    embeddings, Gemma 4 with key and value projections of layers that use another layer's keys and
    values. The model has no such parameters, and loading raises "parameters not in model".
How
    These tensors are dropped when the weights are sanitized, if the model has no such parameter.
Upstream
    mlx-lm 0.32.0 (#1298, #1240).
Retire when
    No supported release is older than mlx-lm 0.32.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

Weights = dict[str, Any]
_SHARED = re.compile(r"layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.")


def without_spare(model: Any, weights: Weights) -> Weights:
    """A checkpoint without its spare tensors."""
    return {name: value for name, value in weights.items() if not is_spare(model, name)}


def sanitized(sanitize: Callable[..., Weights], model: Any, weights: Weights) -> Weights:
    """The release's sanitized checkpoint, without its spare tensors."""
    return without_spare(model, sanitize(model, without_spare(model, weights)))


def is_spare(model: Any, name: str) -> bool:
    """Whether a tensor is one that these families publish, and this model has no place for."""
    if name.startswith("lm_head."):
        return not hasattr(model, "lm_head")
    shared = _SHARED.search(name)
    if shared is None or int(shared[1]) >= len(model.layers):
        return False
    # Layers without attention have no such tensors.
    attention = getattr(model.layers[int(shared[1])], "self_attn", None)
    return attention is not None and not hasattr(attention, shared[2])


PATCH = Patch(
    id="spare-tensors",
    every_model=True,
    summary="Granite and Gemma 4 checkpoints with unused tensors do not load in mlx-lm",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.granite",
            "Model.sanitize",
            lambda original: without_spare,
            fingerprint_of=("Model",),
            defines_new_attribute=True,
        ),
        *(
            Target(
                "mlx-lm",
                f"mlx_lm.models.{module}",
                "Model.sanitize",
                around(sanitized),
                fingerprint_of=body,
            )
            for module, body in (
                ("granitemoehybrid", ("Model.sanitize",)),
                # Up to mlx-lm 0.31.2 these layers have parameters for the tensors.
                ("gemma4_text", ("Model.sanitize", "Attention.__init__")),
            )
        ),
    ),
)
