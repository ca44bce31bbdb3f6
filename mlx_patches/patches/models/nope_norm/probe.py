"""Compares a layer without RoPE and a layer with the same weights that does not normalize."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, compare_arrays, module_of, mx

WIDTH = 16


def probe(target: Target) -> Result:
    """Red if their outputs differ, or if a layer with RoPE does not normalize."""
    module = module_of(target)
    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(1))
    actual, expected = (_make(module, False, norm)(x) for norm in (True, False))
    if not _make(module, True, True).use_qk_norm:
        return Result(True, "a layer with RoPE does not normalize")
    return compare_arrays(actual, expected, 1e-5)


def _make(module: Any, use_rope: bool, norm: bool) -> Any:
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
