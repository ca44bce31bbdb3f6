"""Runs the whole tiny model, vision tower included, on prompts with two images, one and none."""

from __future__ import annotations

from ....core.patch import Target
from ....lab.image_scenarios import features
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import images_result

# Patches for other defects of the same model.
_OTHERS = (*BATCH_PATCHES, "empty-cache-ops", "row-by-row", "mllama-text", "image-prompts")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine differs from its solo run."""
    require_own(target)
    return images_result(features, ["mllama"], _OTHERS)
