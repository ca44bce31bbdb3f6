"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny_of
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

# Patches for other defects of the same model; the last one gives each row its own positions.
_OTHERS = (*BATCH_PATCHES, "image-rows", "rope-deltas", "deepstack-rows")


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    from ....lab.image_scenarios import features_in_pieces

    require_own(target)
    model = tiny_of(target)
    with with_patches(_OTHERS):
        cell = features_in_pieces(model)
    if cell.verdict == "n/a":
        raise NotApplicable(cell.detail)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
