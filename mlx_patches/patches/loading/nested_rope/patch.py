"""A model saved by transformers 5 is loaded with wrong RoPE parameters, or not at all.

Why
    Transformers 5 writes ``rope_theta``, the scaling and the rotated fraction under
    ``rope_parameters``. Most models of mlx-lm and mlx-vlm read only the old keys: Llama 3 gets a
    base of 10,000 instead of 500,000 and no scaling, and long texts degrade into garbage. Where
    the base has no default, as in Qwen3 and Granite, the model does not load. Gemma 3 and OLMo 3
    have parameters of their own for full and for sliding layers.
How
    If a config has ``rope_parameters`` but no ``rope_theta``, and its class does not know
    ``rope_parameters``, the old keys are added: those of the full layers, and the base of the
    sliding ones as ``rope_local_base_freq``.
Upstream
    In mlx-lm 0.32, Qwen3, Granite 4 hybrid and a few others read the new key; Llama and most
    others do not in 0.32.2. In mlx-vlm 0.7.10 most do not.
Retire when
    Every model of a supported release reads ``rope_parameters``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_NEW, _SCALING = "rope_parameters", "rope_scaling"
# The old keys at the top level, besides the scaling.
_NAMES = ("rope_theta", "partial_rotary_factor")


def read(from_dict: Callable[..., Any], cls: Any, params: dict[str, Any]) -> Any:
    """Make a config object from the content of ``config.json``."""
    nested = params.get(_NEW) if isinstance(params, dict) else None
    if not isinstance(nested, dict) or params.get("rope_theta") is not None:
        return from_dict(cls, params)
    known = inspect.signature(cls).parameters
    if _NEW in known or not {"rope_theta", "rope_global_base_freq"} & set(known):
        return from_dict(cls, params)
    return from_dict(cls, {**params, **old_names(nested, params, known)})


def old_names(nested: dict[str, Any], params: dict[str, Any], known: Any) -> dict[str, Any]:
    """The rope parameters under the old keys that a class knows and a config lacks."""
    full, sliding = nested.get("full_attention", nested), nested.get("sliding_attention")
    if not isinstance(full, dict) or "rope_theta" not in full:
        return {}
    old = {name: full[name] for name in _NAMES if name in full}
    old["rope_global_base_freq"] = full["rope_theta"]  # in some classes of Gemma 3
    if isinstance(sliding, dict) and "rope_theta" in sliding:
        old["rope_local_base_freq"] = sliding["rope_theta"]
    kind = full.get("rope_type", full.get("type", "default"))
    if kind != "default":
        # Ropes ignore keys that they do not know; some classes ask for ``type``.
        old[_SCALING] = {"type": kind, **full}
    return {
        name: value for name, value in old.items() if name in known and params.get(name) is None
    }


PATCH = Patch(
    id="nested-rope",
    every_model=True,
    summary="a model saved by transformers 5 is loaded with wrong RoPE parameters, or not at all",
    targets=(
        Target("mlx-lm", "mlx_lm.models.base", "BaseModelArgs.from_dict", around(read)),
        Target("mlx-vlm", "mlx_vlm.models.base", "BaseModelConfig.from_dict", around(read)),
    ),
    module=__name__,
)
