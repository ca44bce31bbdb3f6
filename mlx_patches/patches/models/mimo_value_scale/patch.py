"""MiMo V2 Flash: attention values are 1.4 times too large, even for a single request.

Why: Releases do not read ``attention_value_scale`` (0.707) from the config, so the output of every
    attention layer is 1.4 times too large.
How: The config object keeps the scale, each attention layer stores it, and its values are scaled
    right after their projection, before they enter the cache.
Upstream: mlx-lm 0.32.2; mlx-vlm between 0.7.1 and 0.7.10.
Retire when: No supported release is older than mlx-lm 0.32.2.
"""

from typing import Any

from ....core.verbs import Function, Patch, after, family, wrap
from ..._shared.configs import Params, config_target
from ..._shared.parts import Overlay

_FAMILY = "mimo_v2_flash"
_KEY = "attention_value_scale"
# Attributes of a layer that hold the scale in fixed releases.
_OWN = ("value_scale", "v_scale")


def keep_scale(args: Any, params: Params) -> None:
    if isinstance(params.get(_KEY), (int, float)):
        args.attention_value_scale = params[_KEY]


def store_scale(attention: Any, args: Any, /) -> None:
    """Store the config's scale in an attention layer whose release ignores it."""
    if not any(name in vars(attention) for name in _OWN):
        attention._dropped_scale = getattr(args, _KEY, None)


def call_attention(call: Function, attention: Any, *args: Any, **kwargs: Any) -> Any:
    """The attention layer's output (rows, length, width), with scaled values."""
    scale = scale_of(attention)
    if scale is None:
        return call(attention, *args, **kwargs)
    scaled = Overlay(attention, v_proj=lambda x: attention.v_proj(x) * scale)
    return call(scaled, *args, **kwargs)


def scale_of(attention: Any) -> float | None:
    """The scale of a layer's values; None if the release applies it or the config has none."""
    scale: float | None = vars(attention).get("_dropped_scale")
    return scale


PATCH = Patch(
    id="mimo-value-scale",
    every_model=True,
    wrong_solo="mimo_v2_flash",
    targets=(
        config_target("mlx-lm", _FAMILY, dict, keep_scale),
        config_target("mlx-vlm", _FAMILY, dict, keep_scale),
        *after(family(_FAMILY, "Attention.__init__"), store_scale),
        *wrap(family(_FAMILY, "Attention.__call__"), call_attention),
    ),
)
