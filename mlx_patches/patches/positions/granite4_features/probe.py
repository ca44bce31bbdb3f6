"""Runs a whole tiny model with its vision tower on chunked prompts, with and without images."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import pieces_result

_FAMILY = "granite4_vision"


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from a solo run in one call."""
    require_own(target)
    return pieces_result([_FAMILY], BATCH_PATCHES)
