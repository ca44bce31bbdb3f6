"""Compares the activation with the exact function."""

from ....probes.kit import Result, Target, compare_arrays, mx, own_class_of, require_module


def probe(target: Target) -> Result:
    """Red if the activation is an approximation."""
    values = mx.linspace(-3, 3, 25)
    exact = require_module("mlx.nn").gelu(values)
    return compare_arrays(own_class_of(target)()(values), exact, 1e-6)
