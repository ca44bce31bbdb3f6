"""Extracts rows of a rotating batch after each number of steps, and decodes them solo.

A row's tokens are numbered from 1. Each token's key is its number and its value the negated
number, so a cache's tokens can be read back and compared with those of a solo cache.
"""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, module_with, mx, own_class_of


def probe(target: Target) -> Result:
    """Red if an extracted row differs from a solo cache, then or later."""
    batch_class = own_class_of(target)
    solo_class = module_with(target).RotatingKVCache
    wrong = []
    for window in (4, 8):
        for padding in ((0, 0), (3, 0), (0, 2), (5, 1)):
            for steps in range(2 * window + 2):
                problem = compare_rows(batch_class, solo_class, window, padding, 6, steps)
                if problem:
                    wrong.append(f"window {window}, padding {padding}, {steps} steps: {problem}")
    if wrong:
        return Result(True, f"{len(wrong)} rows wrong, first: {wrong[0]}")
    return Result(False, "every extracted row decodes like a solo run")


def compare_rows(
    batch_class: Any, solo_class: Any, window: int, padding: Sequence[int], prompt: int, steps: int
) -> str:
    """Describe how rows extracted after these steps differ from solo caches; empty if none does."""
    batch = batch_class(window, list(padding))
    feed(batch, _number_tokens(padding, 0, prompt))
    for step in range(steps):
        feed(batch, _number_tokens(padding, prompt + step, 1))
    for row, pad in enumerate(padding):
        solo = solo_class(window)
        feed(solo, [list(range(1, prompt - pad + 1))])
        for step in range(steps):
            feed(solo, [[prompt - pad + step + 1]])
        try:
            extracted = batch.extract(row)
            problem = _compare_decoding(extracted, solo, window, prompt - pad + steps)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            return f"row {row}: {problem}"
    return ""


def _compare_decoding(extracted: Any, solo: Any, window: int, length: int) -> str:
    """Compare offsets, then decode steps past another wrap of the window, then a chunk."""
    if extracted.offset != solo.offset:
        return f"offset {extracted.offset}, solo {solo.offset}"
    for step in range(1, window + 3):
        seen, wanted = (feed(cache, [[length + step]]) for cache in (extracted, solo))
        if seen != wanted:
            return f"sees {seen}, solo {wanted}"
    chunk = [[length + window + 3, length + window + 4]]
    seen, wanted = (feed(cache, chunk) for cache in (extracted, solo))
    return "" if seen == wanted else f"in a chunk sees {seen}, solo {wanted}"


def _number_tokens(padding: Sequence[int], start: int, count: int) -> list[list[int]]:
    """The tokens to feed a left-padded batch: each row's own numbers, -1 for padding."""
    rows = [[start + i - pad + 1 for i in range(count)] for pad in padding]
    return [[number if number > 0 else -1 for number in row] for row in rows]


def feed(cache: Any, numbers: list[list[int]]) -> list[int]:
    """Feed tokens; returns the tokens that the first row then attends to, sorted."""
    states = mx.array(numbers, dtype=mx.float32)[:, None, :, None]
    keys, values = cache.update_and_fetch(states, -states)
    seen = keys[0, 0, :, 0].tolist()
    if seen != (-values[0, 0, :, 0]).tolist():
        raise ValueError("keys and values hold different tokens")
    return sorted(map(int, seen))
