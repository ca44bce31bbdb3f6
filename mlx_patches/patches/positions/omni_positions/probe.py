"""Runs a whole tiny model with its vision tower on chunked prompts, with and without images."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import family_of
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import pieces_result

# Patches for other defects of the same model; ``rope-deltas`` passes each row its positions.
_OTHERS = (*BATCH_PATCHES, "image-rows", "rope-deltas", "deepstack-rows")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from a solo run in one call."""
    require_own(target)
    return pieces_result([family_of(target)], _OTHERS)
