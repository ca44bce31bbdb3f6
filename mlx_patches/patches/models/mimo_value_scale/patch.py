"""MiMo V2 Flash's attention values are too large: a factor in its config is ignored.

Why
    The config has an ``attention_value_scale`` (0.707) that releases do not read: the output of
    every attention layer is 1.4 times too large.
How
    The config object keeps the scale, each attention layer stores it at construction, and its
    values are scaled right after their projection, before they enter the cache.
Upstream
    mlx-lm 0.32.2; mlx-vlm between 0.7.1 and 0.7.10.
Retire when
    No supported release is older than mlx-lm 0.32.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.configs import BASE, VLM_BASE, Params, reads
from ..._shared.parts import Overlay

_KEY = "attention_value_scale"
# Attributes of a layer that hold the scale in releases that read it.
_OWN = ("value_scale", "v_scale")


def keep_scale(args: Any, params: Params) -> None:
    """Copy the value scale from ``config.json`` to a config object."""
    if isinstance(params.get(_KEY), (int, float)):
        args.attention_value_scale = params[_KEY]


def init_attention(
    init: Callable[..., Any], attention: Any, args: Any, *more: Any, **kwargs: Any
) -> None:
    """Construct an attention layer, and store the scale that the release ignores."""
    init(attention, args, *more, **kwargs)
    if not any(name in vars(attention) for name in _OWN):
        attention._dropped_scale = getattr(args, _KEY, None)


def called(call: Callable[..., Any], attention: Any, *args: Any, **kwargs: Any) -> Any:
    """The attention layer's output, (rows, length, width)."""
    scale = scale_of(attention)
    if scale is None:
        return call(attention, *args, **kwargs)
    shown = Overlay(attention, v_proj=lambda x: attention.v_proj(x) * scale)
    return call(shown, *args, **kwargs)


def scale_of(attention: Any) -> float | None:
    """The scale of a layer's values; None if the release applies it or the config has none."""
    scale: float | None = vars(attention).get("_dropped_scale")
    return scale


def _targets(distribution: str, configs: str, layers: str, kind: str, base: str) -> list[Target]:
    return [
        Target(
            distribution,
            configs,
            f"{kind}.from_dict",
            reads(dict, base, keep_scale),
            fingerprint_of=(kind,),
            defines_new_attribute=True,
        ),
        Target(distribution, layers, "Attention.__init__", around(init_attention)),
        Target(distribution, layers, "Attention.__call__", around(called)),
    ]


_LM, _VLM = "mlx_lm.models", "mlx_vlm.models"

PATCH = Patch(
    id="mimo-value-scale",
    every_model=True,
    wrong_alone="mimo_v2_flash",
    changes_alone=True,
    summary="MiMo V2 Flash's attention values are 1.4 times too large",
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
            VLM_BASE,
        ),
    ),
    module=__name__,
)
