"""Compares a tiny MiMo layer with a value scale and one whose weights are scaled by hand."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import config_class, off_by, tiny
from ..._shared.targets import models

SCALE, WIDTH = 0.5, 16
_FAMILY = "mimo_v2_flash"


def probe(target: Target) -> Result:
    """Red where their outputs differ."""
    import mlx.core as mx

    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    by_hand = make(target.distribution)
    by_hand.v_proj.weight = by_hand.v_proj.weight * SCALE
    wanted = by_hand(x)
    said = make(target.distribution, attention_value_scale=SCALE)(x)
    return off_by(said, wanted, 1e-5)


def make(distribution: str, **more: Any) -> Any:
    """Make a layer with these options; every layer gets the same weights."""
    import mlx.core as mx

    layers = importlib.import_module(dict(models(_FAMILY))[distribution])
    config = {**tiny(distribution, _FAMILY).config, "hidden_size": WIDTH, **more}
    args = config_class(distribution, _FAMILY).from_dict(config)
    mx.random.seed(0)
    return layers.Attention(args, True)
