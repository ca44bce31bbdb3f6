"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import pieces_result

_FAMILY = "granite4_vision"


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    require_own(target)
    return pieces_result([_FAMILY], BATCH_PATCHES)
