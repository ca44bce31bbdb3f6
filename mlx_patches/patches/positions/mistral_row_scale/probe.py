"""Batches tiny Ministral 3 and Mistral 4 models whose attention scale grows with position."""

from __future__ import annotations

import importlib

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import measure
from ....probes.tiny import mistral3

# The defect gives all rows the first row's scale: here that row is padded, or the longest.
_LENGTHS = ((5, 9), (9, 5, 2))


def probe(target: Target) -> Result:
    """Red where a row's logits differ from those alone."""
    try:
        importlib.import_module("mlx_vlm.models.mistral4.language")
    except ModuleNotFoundError as error:
        raise NotApplicable("this release has no module mistral4.language") from error
    model = mistral3("ministral3" if "Ministral3" in target.name else "mistral4")
    results = [measure(model, lengths) for lengths in _LENGTHS]
    return next((result for result in results if result.red), results[0])
