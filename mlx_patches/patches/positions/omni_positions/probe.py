"""Runs a whole tiny model with its vision tower on chunked prompts, with and without images."""

from ....probes.images import probe_chunks
from ....probes.kit import BATCH_PATCHES, Result, Target, family_of, require_own

# Patches for other defects of the same model; ``rope-deltas`` passes each row its positions.
_OTHERS = (*BATCH_PATCHES, "image-rows", "rope-deltas", "deepstack-rows")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from a solo run in one call."""
    require_own(target)
    return probe_chunks([family_of(target)], _OTHERS)
