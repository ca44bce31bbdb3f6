"""Embeds a prompt with two images, and prompts with each of them alone."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.batch_invariance import family_of
from ....probes.fixtures import require_own
from ....probes.two_images import compare_images


def probe(target: Target) -> Result:
    """Red where an image has other features beside another image than alone."""
    require_own(target)
    return compare_images(family_of(target))
