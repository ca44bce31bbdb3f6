"""Compares a layer without RoPE and a layer with the same weights that does not normalize."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import off_by

WIDTH = 16


def probe(target: Target) -> Result:
    """Red if their outputs differ, or if a layer with RoPE does not normalize."""
    import mlx.core as mx

    module = importlib.import_module(target.module)
    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    actual, expected = (make(module, False, norm)(x) for norm in (True, False))
    if not make(module, True, True).use_qk_norm:
        return Result(True, "a layer with RoPE does not normalize")
    return off_by(actual, expected, 1e-5)


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
