"""What the lab's scenarios of images say of whole tiny models, as a probe's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from . import NotApplicable, Result
from .batch_invariance import tiny
from .fixtures import with_patches

if TYPE_CHECKING:
    from ..lab import Cell, LabModel


def images_result(
    scenario: Callable[[LabModel], Cell], families: Sequence[str], others: tuple[str, ...]
) -> Result:
    """The worst of a scenario's cells.

    Raises:
        NotApplicable: the scenario does not apply to any of the families.
    """
    return worst_of(images_cells(scenario, families, others))


def images_cells(
    scenario: Callable[[LabModel], Cell], families: Sequence[str], others: tuple[str, ...]
) -> list[Cell]:
    """A scenario's cells of the families of mlx-vlm to which it applies, with other patches."""
    cells = []
    for family in families:
        try:
            model = tiny("mlx-vlm", family)
        except NotApplicable:
            continue
        with with_patches(others):
            cells.append(scenario(model))
    return [cell for cell in cells if cell.verdict != "n/a"]


def worst_of(cells: Sequence[Cell]) -> Result:
    """A red cell if there is one.

    Raises:
        NotApplicable: there is none at all.
    """
    if not cells:
        raise NotApplicable("the release has no such model, or batches no prompts with images")
    worst = max(cells, key=lambda cell: cell.verdict == "red")
    return Result(worst.verdict == "red", worst.detail, worst.figure)
