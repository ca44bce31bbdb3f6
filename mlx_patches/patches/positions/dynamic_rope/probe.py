"""Rotates rows at different positions, before and past the limit of the dynamic scaling."""

import inspect
from typing import Any

from ....probes.kit import Result, Target, class_of, mx

_LIMIT = 16
_WIDTH = 8


def probe(target: Target) -> Result:
    """Red if RoPE raises, or a row differs from its solo run."""
    kind = class_of(target)
    worst = 0.0
    for traditional in (False, True):
        rope = make_rope(kind, traditional)
        x = mx.random.normal((2, 2, 3, _WIDTH + 2), key=mx.random.key(0))
        for offsets in ([0, 3], [2, 40], [30, 50]):
            try:
                batched = rope(x, mx.array(offsets))
            except Exception as error:
                return Result(True, f"offsets {offsets}: {type(error).__name__}: {error}")
            for row, offset in enumerate(offsets):
                solo = rope(x[row : row + 1], offset)
                worst = max(worst, mx.abs(batched[row] - solo[0]).max().item())
    return Result(not worst <= 1e-5, f"largest difference from a solo run {worst:.2g}", worst)


def make_rope(kind: Any, traditional: bool) -> Any:
    """Make a RoPE of the release's class; releases name its growth ``scale`` or ``factor``."""
    names = inspect.signature(kind).parameters
    growth = {name: 2.0 for name in ("scale", "factor") if name in names}
    return kind(
        _WIDTH, max_position_embeddings=_LIMIT, traditional=traditional, base=10000.0, **growth
    )
