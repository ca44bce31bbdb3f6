"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import family_of
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import pieces_result

# Patches for other defects of the same model; the last one gives each row its own positions.
_OTHERS = (*BATCH_PATCHES, "image-rows", "rope-deltas", "deepstack-rows")


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    require_own(target)
    return pieces_result([family_of(target)], _OTHERS)
