"""Resizes a table that is a cubic polynomial of the place."""

from ....probes.kit import Result, Target, mx, require_own

SIZE = 4
TABLE = [float(place**3 - 5 * place**2) for place in range(8)]
# The weights of the neighbours of a point halfway between two places (Keys, 1981; A = -0.75).
WEIGHTS = (-0.09375, 0.59375, 0.59375, -0.09375)


def probe(target: Target) -> Result:
    """Red if a place between two differs from cubic convolution, computed on paper."""
    table = mx.broadcast_to(mx.array(TABLE), (1, 1, 8, 8))
    actual = require_own(target)(table, size=(8, SIZE))[0, 0, 3].tolist()
    places = [[min(max(2 * at + tap, 0), 7) for tap in range(-1, 3)] for at in range(SIZE)]
    expected = [
        sum(weight * TABLE[place] for weight, place in zip(WEIGHTS, own, strict=True))
        for own in places
    ]
    scale = max(map(abs, expected))
    off = max(abs(a - b) for a, b in zip(actual, expected, strict=True)) / scale
    return Result(not off < 1e-5, f"off by {off:.2g} of the table's scale", off)
