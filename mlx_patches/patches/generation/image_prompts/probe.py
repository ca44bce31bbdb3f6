"""Runs whole tiny models, vision towers included, on images in a batch or in chunked prefill."""

from ....probes.images import find_worst, run_families
from ....probes.kit import BATCH_PATCHES, Result, Target, require_own

# A model that computes positions from the whole prompt; models with an argument of a prompt that
# cannot be joined, or that stays on the model.
_IN_CHUNKS, _IN_BATCH = "ernie4_5_moe_vl", ("falcon_ocr", "hunyuan_vl")
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "row-by-row", "rope-deltas")


def probe(target: Target) -> Result:
    """Red if a prompt in a batch, or in chunks, differs from the solo run in one chunk."""
    from ....lab.image_scenarios import features, features_solo

    require_own(target)
    in_batch = [] if target.name == "generate_step" else run_families(features, _IN_BATCH, _OTHERS)
    # A supporting target is needed if any other is.
    solo = target.supports or target.name == "generate_step"
    cells = in_batch or (run_families(features_solo, [_IN_CHUNKS], BATCH_PATCHES) if solo else [])
    if not cells and not solo:
        return Result(False, "the release does not batch prompts with images of these models")
    return find_worst(cells)
