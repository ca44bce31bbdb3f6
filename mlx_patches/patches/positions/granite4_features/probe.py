"""Runs a whole tiny model with its vision tower on chunked prompts, with and without images."""

from ....probes.images import probe_chunks
from ....probes.kit import BATCH_PATCHES, Result, Target, require_own


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from a solo run in one call."""
    require_own(target)
    return probe_chunks(["granite4_vision"], BATCH_PATCHES)
