"""Runs a whole tiny model with its vision tower on prompts with two images, one and none."""

from ....lab.image_scenarios import features
from ....probes.images import probe_scenario
from ....probes.kit import BATCH_PATCHES, Result, Target, require_own

# Masks of prompts, of pixels, and of image tokens.
_FAMILIES = ("idefics2", "paligemma", "zaya1_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "token-names", "recurrent-padding", "extend-solo-batch")


def probe(target: Target) -> Result:
    """Red if a row of the release's engine raises or differs from its solo run."""
    require_own(target)
    return probe_scenario(features, _FAMILIES, _OTHERS)
