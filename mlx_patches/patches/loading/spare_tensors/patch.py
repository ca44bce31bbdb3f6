"""Granite and Gemma 4 checkpoints with unused tensors do not load in mlx-lm.

Why: Granite 8B and Granite 4 hybrid are published with an ``lm_head`` that is tied to the
    embeddings, Gemma 4 with key and value projections of layers that use another layer's keys and
    values. The model has no such parameters, and loading raises "parameters not in model".
How: These tensors are dropped when the weights are sanitized, if the model has no such parameter.
Upstream: mlx-lm 0.32.0 (#1298, #1240).
Retire when: No supported release is older than mlx-lm 0.32.
"""

import re
from typing import Any

from ....core.verbs import Patch, add, lm_family, wrap

Weights = dict[str, Any]
_SHARED = re.compile(r"layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.")


def drop_spare(model: Any, weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if not is_spare(model, name)}


def sanitize_without_spare(sanitize: Any, model: Any, weights: Weights) -> Weights:
    """The sanitized checkpoint; spare tensors may have their final names only now."""
    return drop_spare(model, sanitize(model, drop_spare(model, weights)))


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
    targets=(
        *add(lm_family("granite", "Model.sanitize"), drop_spare, "Model"),
        *wrap(lm_family("granitemoehybrid", "Model.sanitize"), sanitize_without_spare),
        # Up to mlx-lm 0.31.2 these layers have parameters for the tensors.
        *wrap(
            lm_family("gemma4_text", "Model.sanitize"),
            sanitize_without_spare,
            fingerprint_of=("Model.sanitize", "Attention.__init__"),
        ),
    ),
)
