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
from ..._shared.configs import Params, config_target
from ..._shared.parts import Overlay
from ..._shared.targets import models

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


PATCH = Patch(
    id="mimo-value-scale",
    every_model=True,
    wrong_alone="mimo_v2_flash",
    changes_alone=True,
    summary="MiMo V2 Flash: attention values are 1.4 times too large, even for a single request",
    targets=tuple(
        target
        for distribution, layers in models("mimo_v2_flash")
        for target in (
            config_target(distribution, "mimo_v2_flash", dict, keep_scale),
            Target(distribution, layers, "Attention.__init__", around(init_attention)),
            Target(distribution, layers, "Attention.__call__", around(called)),
        )
    ),
)
