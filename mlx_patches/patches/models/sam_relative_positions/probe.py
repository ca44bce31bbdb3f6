"""Interpolates a table of 5 relative positions for a side of 2."""

from ....probes.kit import Result, Target, mx, require

# The values of PyTorch at the relative positions -1, 0 and 1.
EXPECTED = (1 / 3, 4.0, 9 + 14 / 3)


def probe(target: Target) -> Result:
    """Red if the values are not those at the centers of the places."""
    found = require(target)(2, 2, mx.arange(5.0)[:, None] ** 2)[..., 0]
    before, here, after = EXPECTED
    off = mx.abs(found - mx.array([[here, before], [after, here]])).max().item()
    return Result(off > 1e-3, f"the positions are off by {off:.2g}", off)
