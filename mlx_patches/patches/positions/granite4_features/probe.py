"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

_FAMILY = "granite4_vision"


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    from ....lab.image_scenarios import features_in_pieces

    require_own(target)
    model = tiny("mlx-vlm", _FAMILY)
    with with_patches(BATCH_PATCHES):
        cell = features_in_pieces(model)
    if cell.verdict == "n/a":
        raise NotApplicable(cell.detail)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
