"""Compare a row's logits or tokens in a batch with those of its solo run."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.arrays import mx
from ..evidence.words import GREEN, INSENSITIVE, RED
from . import Cell, Generated, Tolerance


def differences(
    batch: Sequence[Mapping[int, Any]], solo: Sequence[Mapping[int, Any]], tolerance: Tolerance
) -> Cell:
    """Compare logits (vocabulary,) by position, row by row, at every shared position."""
    worst, place, most = 0.0, "", 0.0
    clear = agreed = 0
    for index, (row, expected) in enumerate(zip(batch, solo, strict=True)):
        for position, apart, nats, margin, other in _distances(row, expected):
            at = f"row {index}, token {position}"
            if math.isnan(apart):
                return Cell(RED, f"{at}: NaN")
            is_clear = margin > tolerance.margin
            far = apart > tolerance.logits if tolerance.nats is None else nats > tolerance.nats
            if not far and is_clear and other:
                return Cell(RED, f"{at}: another token is the most likely", apart)
            clear += is_clear
            agreed += is_clear and not other
            most = max(most, nats)
            if apart > worst:
                worst, place = apart, at
    if tolerance.nats is not None:
        same = f"the same token at {agreed} of {clear} clear positions"
        red = most > tolerance.nats or agreed < clear
        return Cell(RED if red else GREEN, f"{same}, divergence at most {most:.2g} nats", most)
    if worst > tolerance.logits:
        return Cell(RED, f"{place}: differs by {worst:.2g} of the logits' scale", worst)
    return Cell(GREEN, f"largest difference {worst:.2g} of the logits' scale", worst)


def _distances(
    row: Mapping[int, Any], expected: Mapping[int, Any]
) -> Iterator[tuple[int, float, float, float, bool]]:
    """Per shared position: the position, the relative difference, and the divergence in nats.

    Then the solo run's margin between its two likeliest tokens, and whether the batch's likeliest
    token differs.
    """
    positions = sorted(row.keys() & expected.keys())
    here = mx.stack([row[position] for position in positions])
    there = mx.stack([expected[position] for position in positions])
    scale = mx.abs(there).max()
    top = mx.sort(there, axis=-1)
    p, q = (x - mx.logsumexp(x, axis=-1, keepdims=True) for x in (there, here))
    columns = (
        mx.abs(here - there).max(axis=-1) / scale,
        (mx.exp(p) * (p - q)).sum(axis=-1),
        (top[:, -1] - top[:, -2]) / scale,
        mx.argmax(here, axis=-1) != mx.argmax(there, axis=-1),
    )
    yield from zip(positions, *(column.tolist() for column in columns), strict=True)


def pick_rank(logits: Any, rank: int) -> int:
    """The token of this rank in logits (vocabulary,); 0 is the likeliest."""
    return int((mx.argsort(logits)[-1 - rank] if rank else mx.argmax(logits)).item())


def compare_generated(
    batch: Sequence[Sequence[Generated]],
    solo: Sequence[Sequence[Any]],
    tolerance: Tolerance,
    ranks: Sequence[int | None] = (),
) -> Cell:
    """Compare an engine's tokens with the logits of solo runs.

    ``ranks``: per row, the rank of the token that its sampler takes, 0 for the likeliest, None for
    any. Without ranks every row takes the likeliest token, and any token counts as a tie if the two
    likeliest are close; with ranks, only a token close to the right one does.

    The cell is insensitive if all differences are within the engine's rounding: if all logits are
    small, rounded log-probabilities of different tokens can be equal.
    """
    worst, blunt = 0.0, ""
    for row, (tokens, logits) in enumerate(zip(batch, solo, strict=True)):
        if len(tokens) != len(logits):
            return Cell(RED, f"row {row}: {len(tokens)} tokens instead of {len(logits)}")
        scale = max(mx.abs(one).max().item() for one in logits)
        rank = ranks[row] if ranks else 0
        for step, (one, expected) in enumerate(zip(tokens, logits, strict=True)):
            at = f"row {row}, step {step}"
            # In the engine's dtype: with small logits, the rounding error is large.
            own = expected if one.every is None else expected.astype(one.every.dtype)
            log = (own - mx.logsumexp(own)).astype(mx.float32)
            rounding = tolerance.rounding * mx.abs(log).max().item()
            apart = 0.0
            if one.every is not None:
                apart = mx.abs(one.every.astype(mx.float32) - log).max().item() / scale
            right = one.token if rank is None else pick_rank(expected, rank)
            if one.token != right:
                gap = abs(expected[right].item() - expected[one.token].item())
                second, best = mx.sort(expected)[-2:].tolist()
                lead = gap if ranks else best - second
                if lead <= tolerance.margin * scale and apart <= tolerance.logits:
                    break  # a tie: the texts may differ from here on
                wrong = f"{at}: token {one.token} instead of {right}"
                if not (gap <= rounding and apart * scale <= rounding):
                    return Cell(RED, wrong)
                blunt = f"{wrong}: the engine rounds by more than the difference"
                break
            if one.every is None and one.own is not None:
                apart = abs(one.own - log[one.token].item()) / scale
            if not apart <= tolerance.logits:
                wrong = f"{at}: log-probabilities differ by {apart:.2g}"
                if not apart * scale <= rounding:
                    return Cell(RED, wrong, apart)
                blunt = f"{wrong}: the engine rounds by more"
            worst = max(worst, apart)
    if blunt:
        return Cell(INSENSITIVE, blunt, worst)
    return Cell(GREEN, f"the same tokens; largest difference {worst:.2g}", worst)
