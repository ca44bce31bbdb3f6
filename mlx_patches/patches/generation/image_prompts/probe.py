"""Runs whole tiny models, vision towers included, on images in a batch or in chunked prefill."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import BATCH_PATCHES, require_own
from ....probes.images import images_cells, worst_of

# A model that computes positions from the whole prompt; models with an argument of a prompt that
# cannot be joined, or that stays on the model.
_IN_CHUNKS, _IN_BATCH = "ernie4_5_moe_vl", ("falcon_ocr", "hunyuan_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "row-by-row", "rope-deltas")


def probe(target: Target) -> Result:
    """Red if a prompt in a batch, or in chunks, differs from the solo run in one chunk.

    Raises:
        NotApplicable: the release lacks the model, or cannot run it.
    """
    from ....lab.image_scenarios import features, features_solo

    require_own(target)
    in_batch = [] if target.name == "generate_step" else images_cells(features, _IN_BATCH, _OTHERS)
    # A supporting target is needed if any other is.
    solo = target.supports or target.name == "generate_step"
    cells = in_batch or (images_cells(features_solo, [_IN_CHUNKS], BATCH_PATCHES) if solo else [])
    if not cells and not solo:
        return Result(False, "the release does not batch prompts with images of these models")
    return worst_of(cells)
