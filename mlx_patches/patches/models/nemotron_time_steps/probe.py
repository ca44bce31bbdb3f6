"""Compares a tiny Nemotron-H mixer without time_step_limit and one with the limits 0 and inf."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import off_by
from ....probes.fixtures import NEMOTRON_H

_WIDTH = 32
_RANGE = {"time_step_min": 0.001, "time_step_max": 0.1}


def probe(target: Target) -> Result:
    """Red where their outputs differ."""
    import mlx.core as mx

    module = importlib.import_module(target.module)
    if "time_step_min" not in {field.name for field in dataclasses.fields(module.ModelArgs)}:
        raise NotApplicable("this release reads no time_step_min")
    x = mx.random.normal((1, 8, _WIDTH), key=mx.random.key(1))
    said, wanted = answered(module, x, **_RANGE), answered(module, x, time_step_limit=(0.0, mx.inf))
    return off_by(said, wanted, 0)


def answered(module: Any, x: Any, **limits: Any) -> Any:
    """Run a mixer with these limits on ``x`` (rows, length, width)."""
    import mlx.core as mx

    mx.random.seed(0)
    args = module.ModelArgs.from_dict({**NEMOTRON_H, **limits})
    mixer = module.NemotronHMamba2Mixer(args)
    mixer.dt_bias = 2 * mx.random.normal(mixer.dt_bias.shape)
    return mixer(x, None)
