"""Runs a whole tiny model with its vision tower on prompts with two images, one and none."""

from __future__ import annotations

from ....core.patch import Target
from ....lab.image_scenarios import features
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import images_result

# Masks of prompts, of pixels, and of image tokens.
_FAMILIES = ("idefics2", "paligemma", "zaya1_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "token-names", "recurrent-padding", "extend-solo-batch")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine raises or differs from its solo run."""
    require_own(target)
    return images_result(features, _FAMILIES, _OTHERS)
