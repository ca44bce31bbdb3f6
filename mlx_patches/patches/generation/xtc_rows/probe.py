"""Applies XTC to two rows with different distributions, together and alone."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import require

_ALWAYS, _THRESHOLD, _SPECIAL = 1.0, 0.1, [3]
_PROBABILITIES = ([0.6, 0.3, 0.05, 0.05], [0.4, 0.25, 0.2, 0.15])


def probe(target: Target) -> Result:
    """Red where a row keeps other tokens than alone."""
    import mlx.core as mx

    apply_xtc = require(target)
    logits = mx.log(mx.array(_PROBABILITIES))
    together = apply_xtc(logits, _ALWAYS, _THRESHOLD, _SPECIAL).tolist()
    for row, seen in enumerate(together):
        (alone,) = apply_xtc(logits[row : row + 1], _ALWAYS, _THRESHOLD, _SPECIAL).tolist()
        if seen != alone:
            kept = [[i for i, one in enumerate(said) if one > -100] for said in (seen, alone)]
            return Result(True, f"row {row} keeps {kept[0]}, alone {kept[1]}")
    return Result(False, "each row keeps the same tokens as alone")
