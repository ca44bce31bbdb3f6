"""Rotates an array twice, as a layer that shares it would, and reads it again."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result

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
    """Red where the array is another one afterwards."""
    import mlx.core as mx

    rope = make(importlib.import_module(target.module), target.name.partition(".")[0])
    x = mx.ones((1, 2, 4, 8))
    rope(x)
    rope(x)
    largest = x.max().item()
    return Result(largest != 1, f"ones that were rotated twice are {largest:g}", largest)


def make(module: Any, name: str) -> Any:
    """A rope that scales what it rotates."""
    if not hasattr(module, name):
        raise NotApplicable(f"this release has no {name}")
    return getattr(module, name)(**_OPTIONS[name])
