"""Runs whole tiny models, vision tower included, on prompts with images, together or in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from ....probes.fixtures import BATCH_PATCHES, require_own, with_patches

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

    own: Any = require_own(target)
    if own.__module__ != target.module:
        raise NotApplicable(f"{target.module} only imports {target.name}")
    if target.name == "generate_step":
        cells = [run(features_alone, _IN_PIECES, BATCH_PATCHES)]
    else:
        cells = [run(features, family, _OTHERS) for family in _TOGETHER]
    held = [cell for cell in cells if cell and cell.verdict != "n/a"]
    if not held and target.name == "generate_step":
        raise NotApplicable("the release has not the model, or its generate_step takes no sampler")
    if not held:
        return Result(False, "the release batches no prompts with images of these models")
    worst = max(held, key=lambda cell: cell.verdict == "red")
    return Result(worst.verdict == "red", worst.detail, worst.figure)


def run(scenario: Callable[[Any], Any], family: str, others: tuple[str, ...]) -> Any:
    """A scenario's cell of a family, with other patches; None if the release lacks it."""
    try:
        model = tiny("mlx-vlm", family)
        with with_patches(others):
            return scenario(model)
    except NotApplicable:
        return None
