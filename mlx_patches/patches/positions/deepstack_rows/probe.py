"""Runs a whole tiny model, vision tower included, on prompts with and without images, in pieces."""

from __future__ import annotations

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

_FAMILY = "qwen3_vl"
# Patches for other defects of the same models.
_OTHERS = (*BATCH_PATCHES, "rope-deltas")


def probe(target: Target) -> Result:
    """Red where a row of the release's engine differs from its prompt alone, read in one call."""
    from ....lab.image_scenarios import features_in_pieces

    require_own(target)
    in_model = target.module.startswith("mlx_vlm.models.")
    model = tiny("mlx-vlm", target.module.split(".")[2] if in_model else _FAMILY)
    with with_patches(_OTHERS):
        cell = features_in_pieces(model)
    if cell.verdict == "n/a":
        raise NotApplicable(cell.detail)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
