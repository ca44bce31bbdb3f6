"""Rotates rows at positions before and past the limit of a LongRoPE, batched and solo."""

from typing import Any

from ....probes.kit import Result, Target, mx, own_class_of

_WIDTH = 8
_LIMIT = 16
_OFFSETS = ((0, 5), (5, 20), (20, 17))
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if RoPE rejects a batch, or a row differs from its solo run."""
    factors = {"short_factor": [1.0] * (_WIDTH // 2), "long_factor": [4.0] * (_WIDTH // 2)}
    rope = own_class_of(target)(
        _WIDTH,
        max_position_embeddings=4 * _LIMIT,
        original_max_position_embeddings=_LIMIT,
        **factors,
    )
    worst = 0.0
    for offsets in _OFFSETS:
        for length in (1, 3):
            batched = rope(make_keys(length), mx.array(offsets))
            solo = [rope(make_keys(length)[i : i + 1], row) for i, row in enumerate(offsets)]
            distance = float(mx.abs(batched - mx.concatenate(solo)).max().item())
            if not distance <= TOLERANCE:
                return Result(True, f"rows at {offsets} differ by {distance:.2g}", distance)
            worst = max(worst, distance)
    return Result(False, "each row of a batch equals its solo run", worst)


def make_keys(length: int) -> Any:
    """Make two rows' keys; new ones each time, since RoPE may scale them in place."""
    rows = len(_OFFSETS[0])
    return mx.arange(1.0, rows * length * _WIDTH + 1).reshape(rows, 1, length, _WIDTH) / 10
