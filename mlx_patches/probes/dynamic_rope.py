"""Rotates rows at their own positions, below the limit of the dynamic scaling and past it."""

from __future__ import annotations

import importlib
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result

_LIMIT = 16
_WIDTH = 8
_OFFSETS = ([0, 3], [2, 40], [30, 50])


def probe(target: Target) -> Result:
    """Red where the rope dies, or a row is rotated otherwise than alone."""
    import mlx.core as mx

    module = importlib.import_module(target.module)
    kind: Any = getattr(module, target.name.partition(".")[0], None)
    if kind is None:
        raise NotApplicable(f"{target.module} has no dynamic scaling")
    rope = kind(_WIDTH, max_position_embeddings=_LIMIT)
    x = mx.random.normal((2, 2, 3, _WIDTH), key=mx.random.key(0))
    worst = 0.0
    for offsets in _OFFSETS:
        try:
            together = rope(x, mx.array(offsets))
        except Exception as error:
            return Result(True, f"offsets {offsets}: {type(error).__name__}: {error}")
        for row, offset in enumerate(offsets):
            alone = rope(x[row : row + 1], offset)
            worst = max(worst, mx.abs(together[row] - alone[0]).max().item())
    return Result(not worst <= 1e-5, f"largest difference to a row alone {worst:.2g}", worst)
