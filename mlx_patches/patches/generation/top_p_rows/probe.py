"""Samples a batch of two rows with different probable tokens."""

from ....probes.kit import Result, Target, mx, require

_TOKENS, _PROBABLE = 8, (5, 2)


def probe(target: Target) -> Result:
    """Red if a row does not draw its probable token."""
    sample = require(target)
    logits = 20.0 * mx.eye(_TOKENS)[mx.array(_PROBABLE)]
    drawn = sample(logits, 0.5, 1.0).tolist()
    return Result(drawn != list(_PROBABLE), f"draws {drawn}; probable are {list(_PROBABLE)}")
