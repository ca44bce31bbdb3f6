"""Embeds a prompt with two images, and a prompt with each single image."""

from ....probes.kit import Result, Target, family_of, require_own
from ....probes.two_images import compare_images


def probe(target: Target) -> Result:
    """Red if the second image has other features than in its own prompt."""
    require_own(target)
    return compare_images(family_of(target))
