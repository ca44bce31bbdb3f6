"""Runs a whole tiny model, vision tower included, on prompts with two images, one and none."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

# Masks of prompts, of pixels, and of image tokens.
_FAMILIES = ("idefics2", "paligemma", "zaya1_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "token-names", "recurrent-padding", "extend-solo-batch")


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, or raises."""
    from ....lab.image_scenarios import features

    require_own(target)
    held = []
    for family in _FAMILIES:
        try:
            model = tiny("mlx-vlm", family)
        except NotApplicable:
            continue
        with with_patches(_OTHERS):
            held.append(features(model))
    cells = [cell for cell in held if cell.verdict != "n/a"]
    if not cells:
        raise NotApplicable("the release batches no prompts with images")
    worst = max(cells, key=lambda cell: cell.verdict == "red")
    return Result(worst.verdict == "red", worst.detail, worst.figure)
