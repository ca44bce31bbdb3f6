"""Compares a layer without positions and one of the same weights that does not normalize."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import off_by

WIDTH = 16


def probe(target: Target) -> Result:
    """Red where their outputs differ; also where a layer with a rope is not like the release's."""
    import mlx.core as mx

    module = importlib.import_module(target.module)
    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    said, wanted = (make(module, False, norm)(x) for norm in (True, False))
    if not make(module, True, True).use_qk_norm:
        return Result(True, "a layer with a rope does not normalize")
    return off_by(said, wanted, 1e-5)


def make(module: Any, use_rope: bool, norm: bool) -> Any:
    """Make a layer; every layer gets the same weights."""
    import mlx.core as mx

    args = SimpleNamespace(
        hidden_size=WIDTH,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        use_qk_norm=norm,
    )
    mx.random.seed(0)
    return module.Attention(args, use_rope)
