"""Rotates an array twice, as layers that share it do, and checks that it is unchanged."""

from typing import Any

from ....probes.kit import Result, Target, module_with, mx

_OPTIONS: dict[str, dict[str, Any]] = {
    "SuScaledRoPE": {
        "dims": 8,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0] * 4,
    },
    "YarnRoPE": {"dims": 8, "scaling_factor": 4.0},
}


def probe(target: Target) -> Result:
    """Red if RoPE changes the input array."""
    rope = make(module_with(target), target.name.partition(".")[0])
    x = mx.ones((1, 2, 4, 8))
    rope(x)
    rope(x)
    largest = x.max().item()
    return Result(largest != 1, f"an input of ones is {largest:g} after two rotations", largest)


def make(module: Any, name: str) -> Any:
    """Make a RoPE that scales its input."""
    return getattr(module, name)(**_OPTIONS[name])
