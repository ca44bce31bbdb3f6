"""Decides whether two results are equal, and describes how far cases are off."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...evidence.results import BrokenEnvironment, find_fault
from ...evidence.words import GREEN, NOT_APPLICABLE, RED
from .. import Cell

# The largest difference of equal results, as a share of the scale; transformers and the release
# differ by less than a tenth of this in float32.
EQUAL = 1e-4
# The same where transformers has no PIL backend, or resizes a frame: pixels are rounded.
ROUNDED = 1e-2


def put_in_line(error: BaseException) -> str:
    """The error in one line, with the last name of each path: evidence has no other folders.

    Raises:
        BrokenEnvironment: the environment is at fault; but the lab itself hides torch.
    """
    # mlx-vlm raises other errors for those of processors, without their cause.
    causes = filter(None, (error, error.__context__))
    fault = next(filter(None, map(find_fault, causes)), "")
    if fault and "torch" not in fault:
        raise BrokenEnvironment(fault) from error
    text = re.sub(r"(?<!\w)/[\w./-]*/(?=\w)", "", f"{type(error).__name__}: {error}")
    return " ".join(text.split())[:240]


def argmax(logprobs: Any) -> Any:
    """The most likely token."""
    return logprobs.argmax(-1)


def is_alike(shape: Sequence[int], value: Any) -> bool:
    """Whether a shape is that of an array, except for axes of length 1."""
    return [one for one in shape if one != 1] == [one for one in value.shape if one != 1]


def difference(own: Any, want: Any) -> Any:
    """The largest difference of two arrays, or a sentence if their shapes differ."""
    import numpy as np

    if is_alike(own.shape, want):
        own = own.reshape(want.shape)
    if own.shape != want.shape and own.ndim == want.ndim >= 3:
        own = np.moveaxis(own, -1, -3)
    if own.shape != want.shape:
        if own.ndim == want.ndim == 2 and len(own) == len(want) == 1:
            return f"{own.shape[1]} for {want.shape[1]} tokens"
        return f"shape {own.shape} for {want.shape}"
    return float(np.abs(own.astype(np.float64) - want).max()) if own.size else 0.0


def verdict(off: Mapping[Any, Any], equal: float = EQUAL) -> Cell:
    """Green if every case is equal: a share of the scale; a sentence is an error."""
    if not off:
        return Cell(NOT_APPLICABLE, "no case")
    wrong = {c: one for c, one in off.items() if isinstance(one, str) or not one <= equal}
    worst = max((one for one in off.values() if not isinstance(one, str)), default=None)
    return Cell(RED, describe_off(wrong), worst) if wrong else Cell(GREEN, "equal", worst)


def describe_off(off: Mapping[str, Any]) -> str:
    groups: dict[str, list[str]] = {}
    for case, one in off.items():
        groups.setdefault(one if isinstance(one, str) else f"{one:.2g}", []).append(case)
    return "; ".join(
        f"{', '.join(cases)}: off by {one}" if one[0].isdigit() else f"{', '.join(cases)}: {one}"
        for one, cases in groups.items()
    )
