"""Compares a tiny MiMo layer with a value scale and one with weights scaled by hand."""

from typing import Any

from ....probes.kit import Result, Target, compare_arrays, config_class, import_module, mx, tiny

SCALE, WIDTH = 0.5, 16
_FAMILY = "mimo_v2_flash"
_LAYERS = {"mlx-lm": f"mlx_lm.models.{_FAMILY}", "mlx-vlm": f"mlx_vlm.models.{_FAMILY}.language"}


def probe(target: Target) -> Result:
    """Red if their outputs differ."""
    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    by_hand = make(target.distribution)
    by_hand.v_proj.weight = by_hand.v_proj.weight * SCALE
    expected = by_hand(x)
    actual = make(target.distribution, attention_value_scale=SCALE)(x)
    return compare_arrays(actual, expected, 1e-5)


def make(distribution: str, **more: Any) -> Any:
    """Make a layer with these options; every layer gets the same weights."""
    layers = import_module(_LAYERS[distribution])
    config = {**tiny(distribution, _FAMILY).config, "hidden_size": WIDTH, **more}
    args = config_class(distribution, _FAMILY).from_dict(config)
    mx.random.seed(0)
    return layers.Attention(args, True)
