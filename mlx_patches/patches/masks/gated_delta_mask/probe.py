"""Runs the gated delta rule over a padded batch, and over each row without its padding."""

from typing import Any

from ....probes.kit import Result, Target, module_of, mx, require_parameter

_HEADS = 2
_TOKENS = 5
_KEYS = _VALUES = 4
# The second batch has as many rows as keys: a mask broadcast from the wrong side is no error then.
_PADDINGS = ([2, 0, 1], [3, 1, 0, 2])
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if padding changes a row's outputs or its state."""
    run: Any = module_of(target).gated_delta_ops
    require_parameter(run, "mask")
    worst = 0.0
    for padding in _PADDINGS:
        rows = _inputs(len(padding))
        mask = mx.arange(_TOKENS) >= mx.array(padding)[:, None]
        out, state = run(*rows, mask=mask)
        for row, pad in enumerate(padding):
            solo, after = run(*(one[row : row + 1, pad:] for one in rows))
            distance = max(
                float(mx.abs(out[row : row + 1, pad:] - solo).max().item()),
                float(mx.abs(state[row : row + 1] - after).max().item()),
            )
            if not distance <= TOLERANCE:
                return Result(
                    True, f"padding {padding}: row {row} differs by {distance:.2g}", distance
                )
            worst = max(worst, distance)
    return Result(False, "padding changes no row", worst)


def _inputs(rows: int) -> list[Any]:
    def draw(seed: int, *width: int) -> Any:
        return mx.random.uniform(shape=(rows, _TOKENS, _HEADS, *width), key=mx.random.key(seed))

    return [draw(0, _KEYS), draw(1, _KEYS), draw(2, _VALUES), draw(3), draw(4)]
