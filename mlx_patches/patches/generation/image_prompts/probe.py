"""Runs whole tiny models, vision tower included, on prompts with images, together or in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import images_cells, worst_of

# Positions from the whole prompt; and an argument of a prompt that cannot be joined, or is on the
# model.
_IN_PIECES, _TOGETHER = "ernie4_5_moe_vl", ("falcon_ocr", "hunyuan_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "row-by-row", "rope-deltas")


def probe(target: Target) -> Result:
    """Red where a prompt beside others, or in pieces, differs from the same prompt alone or whole.

    Raises:
        NotApplicable: the release has not the model, or it cannot be given an answer.
    """
    from ....lab.image_scenarios import features, features_alone

    require_own(target)
    in_batch = [] if target.name == "generate_step" else images_cells(features, _TOGETHER, _OTHERS)
    # A supporting target is needed where any other is.
    own_alone = target.supports or target.name == "generate_step"
    held = in_batch or (
        images_cells(features_alone, [_IN_PIECES], BATCH_PATCHES) if own_alone else []
    )
    if not held and not own_alone:
        return Result(False, "the release batches no prompts with images of these models")
    return worst_of(held)
