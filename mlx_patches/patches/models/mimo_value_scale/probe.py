"""Compares a tiny MiMo layer with a value scale and one with weights scaled by hand."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import config_class, off_by, tiny

SCALE, WIDTH = 0.5, 16
_FAMILY = "mimo_v2_flash"
_LAYERS = {
    "mlx-lm": f"mlx_lm.models.{_FAMILY}",
    "mlx-vlm": f"mlx_vlm.models.{_FAMILY}.language",
}


def probe(target: Target) -> Result:
    """Red if their outputs differ."""
    import mlx.core as mx

    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    by_hand = make(target.distribution)
    by_hand.v_proj.weight = by_hand.v_proj.weight * SCALE
    expected = by_hand(x)
    actual = make(target.distribution, attention_value_scale=SCALE)(x)
    return off_by(actual, expected, 1e-5)


def make(distribution: str, **more: Any) -> Any:
    """Make a layer with these options; every layer gets the same weights."""
    import mlx.core as mx

    layers = importlib.import_module(_LAYERS[distribution])
    config = {**tiny(distribution, _FAMILY).config, "hidden_size": WIDTH, **more}
    args = config_class(distribution, _FAMILY).from_dict(config)
    mx.random.seed(0)
    return layers.Attention(args, True)
