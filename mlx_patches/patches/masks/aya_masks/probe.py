"""Runs a tiny Aya Vision text model past its window: one row in chunks, and rows in a batch."""

from __future__ import annotations

import importlib

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import TOLERANCE, differs, first_red, tiny

_WAYS = ((20,), (9, 11), (4, 4, 4, 4, 4), (1,) * 20)
_LENGTHS = ((5, 9), (12, 3, 7))


def probe(target: Target) -> Result:
    """Red where the logits depend on how the text is split into chunks, or on other rows."""
    importlib.import_module(target.module)
    model = tiny("mlx-vlm", "aya_vision")
    alone = differs(model, _WAYS)
    if not alone <= TOLERANCE:
        return Result(True, f"one row, whole against in chunks: differs by {alone:.3g}", alone)
    return first_red(model, _LENGTHS)
