"""A model that transformers 5 saved is loaded with another rope, or not at all.

Why
    Transformers 5 writes ``rope_theta``, the scaling and the part that is rotated under
    ``rope_parameters``. Most models of mlx-lm read the old names alone: Llama 3 gets a base of
    10,000 in place of 500,000 and no scaling, and its text falls apart as it grows. Where the
    base has no default, as in Qwen3 and Granite, the model is not loaded.
How
    A config that has ``rope_parameters`` and no ``rope_theta`` is read as if it had the old names
    too, by the classes that do not know the new one. One for each kind of layer stays as it is.
Upstream
    mlx-lm 0.32 reads the new name in Qwen3, Granite 4 hybrid and a few others, one by one; Llama
    and most others do not in 0.32.2.
Retire when
    Every model of a supported release reads ``rope_parameters``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

_NEW, _SCALING = "rope_parameters", "rope_scaling"
# What stood at the top.
_NAMES = ("rope_theta", "partial_rotary_factor")


def read(from_dict: Callable[..., Any], cls: Any, params: dict[str, Any]) -> Any:
    """A config of what ``config.json`` says."""
    nested = params.get(_NEW) if isinstance(params, dict) else None
    if not isinstance(nested, dict) or params.get("rope_theta") is not None:
        return from_dict(cls, params)
    known = inspect.signature(cls).parameters
    if _NEW in known or "rope_theta" not in known or "rope_theta" not in nested:
        return from_dict(cls, params)
    return from_dict(cls, {**params, **old_names(nested, params, known)})


def old_names(nested: dict[str, Any], params: dict[str, Any], known: Any) -> dict[str, Any]:
    """What rope parameters say, by the names that a class knows and a config lacks."""
    old = {name: nested[name] for name in _NAMES if name in nested}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        old[_SCALING] = nested  # ropes read the names they know
    return {
        name: value for name, value in old.items() if name in known and params.get(name) is None
    }


PATCH = Patch(
    id="nested-rope",
    summary="a model that transformers 5 saved is loaded with another rope, or not at all",
    targets=(Target("mlx-lm", "mlx_lm.models.base", "BaseModelArgs.from_dict", around(read)),),
    probe="mlx_patches.probes.nested_rope:probe",
    module=__name__,
)
