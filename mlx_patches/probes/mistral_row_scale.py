"""Tiny Ministral 3 and Mistral 4 models whose attention scale grows after a few positions."""

from __future__ import annotations

import importlib

from ..core.patch import Target
from . import NotApplicable, Result
from .batch_invariance import measure
from .tiny import mistral3

# The first row is the one whose scale all would get: padded, and the longest.
_LENGTHS = ((5, 9), (9, 5, 2))


def probe(target: Target) -> Result:
    """Red where a row's logits are not what they are alone."""
    try:
        importlib.import_module("mlx_vlm.models.mistral4.language")
    except ModuleNotFoundError as error:
        raise NotApplicable("the scale is not yet made in one place") from error
    model = mistral3("ministral3" if "Ministral3" in target.name else "mistral4")
    results = [measure(model, lengths) for lengths in _LENGTHS]
    return next((result for result in results if result.red), results[0])
