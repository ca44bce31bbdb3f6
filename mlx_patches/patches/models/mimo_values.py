"""MiMo V2 Flash attends with values that are too large: a factor of its config is dropped.

Why
    The config has an ``attention_value_scale`` (0.707), which releases do not read: every layer
    adds 1.4 times what it should.
How
    A config keeps its scale, a layer is made with it, and its values are scaled as they are
    projected, before they go into the cache.
Upstream
    mlx-lm 0.32.2; mlx-vlm between 0.7.1 and 0.7.10.
Retire when
    No supported release is older than mlx-lm 0.32.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from ..loading.configs import BASE, Params, reads
from ..parts import Shown

_KEY = "attention_value_scale"
# What a layer holds its scale in where the release has one.
_OWN = ("value_scale", "v_scale")


def keep_scale(args: Any, params: Params) -> None:
    """Give a config the value scale that ``config.json`` says."""
    if params.get(_KEY) is not None:
        args.attention_value_scale = params[_KEY]


def made(init: Callable[..., Any], attention: Any, args: Any, *more: Any, **kwargs: Any) -> None:
    """An attention layer that is being made of a config."""
    init(attention, args, *more, **kwargs)
    if not any(name in vars(attention) for name in _OWN):
        attention._dropped_scale = getattr(args, _KEY, None)


def called(call: Callable[..., Any], attention: Any, *args: Any, **kwargs: Any) -> Any:
    """What a layer attends to, (rows, length, width)."""
    scale = scale_of(attention)
    if scale is None:
        return call(attention, *args, **kwargs)
    shown = Shown(attention, v_proj=lambda x: attention.v_proj(x) * scale)
    return call(shown, *args, **kwargs)


def scale_of(attention: Any) -> float | None:
    """What a layer's values are to be scaled by; None where the release does it, or nothing is."""
    scale: float | None = vars(attention).get("_dropped_scale")
    return scale


def _targets(distribution: str, configs: str, layers: str, kind: str, base: str) -> list[Target]:
    return [
        Target(
            distribution,
            configs,
            f"{kind}.from_dict",
            reads(dict, base, keep_scale),
            body=(kind,),
            adds=True,
        ),
        Target(distribution, layers, "Attention.__init__", around(made)),
        Target(distribution, layers, "Attention.__call__", around(called)),
    ]


_LM, _VLM = "mlx_lm.models", "mlx_vlm.models"

PATCH = Patch(
    id="mimo-value-scale",
    summary="MiMo V2 Flash attends with values that are 1.4 times too large",
    targets=(
        *_targets(
            "mlx-lm",
            f"{_LM}.mimo_v2_flash",
            f"{_LM}.mimo_v2_flash",
            "ModelArgs",
            BASE,
        ),
        *_targets(
            "mlx-vlm",
            f"{_VLM}.mimo_v2_flash.config",
            f"{_VLM}.mimo_v2_flash.language",
            "ModelConfig",
            f"{_VLM}.base:BaseModelConfig",
        ),
    ),
    probe="mlx_patches.probes.mimo_values:probe",
    module=__name__,
)
