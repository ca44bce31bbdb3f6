"""Runs the whole tiny model, vision tower included, on prompts with two images, one and none."""

from ....lab.image_scenarios import features
from ....probes.images import probe_scenario
from ....probes.kit import BATCH_PATCHES, Result, Target, require_own

# Patches for other defects of the same model.
_OTHERS = (*BATCH_PATCHES, "empty-cache-ops", "row-by-row", "mllama-text", "image-prompts")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from its solo run."""
    require_own(target)
    return probe_scenario(features, ["mllama"], _OTHERS)
