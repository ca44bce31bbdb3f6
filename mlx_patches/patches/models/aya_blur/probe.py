"""Blurs an image along each axis, and compares every pixel with a Gaussian blur."""

import math

from ....probes.kit import Result, Target, module_of, mx

SIGMA = 1.0
LENGTHS = (7, 12)  # the kernel's length, and a longer image


def probe(target: Target) -> Result:
    """Red if the blur raises, or differs from a Gaussian blur."""
    blur = getattr(module_of(target), target.name)
    for length in LENGTHS:
        row = [float(n * n % 11) for n in range(length)]
        for axis in (0, 1):
            image = mx.array([row, row]) if axis else mx.array([[one, one] for one in row])
            blurred = blur(image, SIGMA, axis)
            pixels = (blurred[0] if axis else blurred[:, 0]).tolist()
            difference = max(abs(a - b) for a, b in zip(pixels, _blur_row(row), strict=True))
            if not difference < 1e-4:
                return Result(True, f"{difference:.2g} off a Gaussian blur", difference)
    return Result(False, "a Gaussian blur")


def _blur_row(row: list[float]) -> list[float]:
    radius = int(3 * SIGMA)
    shifts = range(-radius, radius + 1)
    weights = [math.exp(-(shift**2) / (2 * SIGMA**2)) for shift in shifts]
    last = len(row) - 1
    return [
        sum(w * row[min(max(place + s, 0), last)] for w, s in zip(weights, shifts, strict=True))
        / sum(weights)
        for place in range(len(row))
    ]
