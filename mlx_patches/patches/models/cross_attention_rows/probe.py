"""Runs the whole tiny model, vision tower included, on prompts with two images, one and none."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

# Patches for other defects of the same model.
_OTHERS = (*BATCH_PATCHES, "empty-cache-ops", "row-by-row", "mllama-text", "image-prompts")


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone."""
    from ....lab.image_scenarios import features

    require_own(target)
    model = tiny("mlx-vlm", "mllama")
    with with_patches(_OTHERS):
        cell = features(model)
    if cell.verdict == "n/a":
        raise NotApplicable(cell.detail)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
