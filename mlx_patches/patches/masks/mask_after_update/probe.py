"""Runs a tiny decoder over a left-padded batch, in chunks and decode steps, and each row solo.

The probe calls the decoder inside the language model with each row's own positions, so that
position defects of the language model itself do not matter.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, batch_cache, find_largest, measure_distance, mx, tiny_of

_LEFT_PADDING = (3, 0, 1)
_PIECES = (5, 4, 1, 1)
_TOLERANCE = 1e-3


def probe(target: Target) -> Result:
    """Red if a row's hidden states in the batch differ from its solo run."""
    built = tiny_of(target)
    model = built.module.model
    length = sum(_PIECES)
    texts = [[1 + (7 * i + 3 * row) % 50 for i in range(length)] for row in range(3)]
    padded = [
        [0] * pad + text[: length - pad] for pad, text in zip(_LEFT_PADDING, texts, strict=True)
    ]
    try:
        run(model, padded, (0, 0, 0), batch_cache(built, (0, 0, 0)), chunks=(4,))
    except Exception as error:
        return Result(False, f"the defect is another one: no batch runs, padded or not: {error}")
    batched = run(model, padded, _LEFT_PADDING, batch_cache(built, _LEFT_PADDING))
    figures = []
    for row, pad in enumerate(_LEFT_PADDING):
        solo = run(model, [padded[row][pad:]], (0,), built.make_cache(), skip=pad)
        figures.append(measure_distance(batched[row, pad:], solo[0]))
    worst = find_largest(figures)
    if not worst <= _TOLERANCE:
        return Result(True, f"rows differ by {worst:.2g} of their scale", worst)
    return Result(False, f"every row equals its solo run; largest difference {worst:.2g}", worst)


def run(
    model: Any,
    rows: Sequence[Sequence[int]],
    left_padding: Sequence[int],
    cache: list[Any],
    skip: int = 0,
    chunks: Sequence[int] = _PIECES,
) -> Any:
    """Feed rows in chunks, without ``skip`` columns; returns states (rows, tokens, width)."""
    takes_positions = "position_ids" in inspect.signature(type(model).__call__).parameters
    outputs, start = [], 0
    for chunk in chunks:
        end = start + chunk
        here = slice(max(start - skip, 0), max(end - skip, 0))
        start = end
        if here.start == here.stop:
            continue
        kwargs = {}
        if takes_positions:
            places = [
                [max(i - pad, 0) for i in range(here.start, here.stop)] for pad in left_padding
            ]
            kwargs["position_ids"] = mx.array([places] * 3)
        tokens = mx.array([list(row[here]) for row in rows])
        outputs.append(model(tokens, cache=cache, **kwargs))
    return mx.concatenate(outputs, axis=1)
