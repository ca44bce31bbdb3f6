"""Reads a small GLM config whose heads are rotated in half, and looks at what its rope changes."""

from __future__ import annotations

import importlib

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import config_class, tiny_of
from ..._shared.targets import models

_HEAD = 16


def probe(target: Target) -> Result:
    """Red where the rope changes a dimension beyond the half."""
    import mlx.core as mx

    layers = importlib.import_module(dict(models("glm"))[target.distribution])
    kind = config_class(target.distribution, "glm")
    config = {**tiny_of(target).config, "head_dim": _HEAD}
    x = mx.ones((1, 1, 1, _HEAD))
    for named in (
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}},
    ):
        attention = layers.GLMAttention(kind.from_dict({**config, **named}))
        turned = attention.rope(x, offset=5) != x
        if not mx.array_equal(turned.reshape(-1), mx.arange(_HEAD) < _HEAD // 2).item():
            return Result(True, f"{turned.sum().item()} of {_HEAD} dimensions are rotated")
    return Result(False, "half of a head is rotated")
