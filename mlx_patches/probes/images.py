"""Results of the lab's image scenarios for whole tiny models, as a probe's result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..lab.image_scenarios import features_chunked, features_solo
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


def pieces_result(families: Sequence[str], others: tuple[str, ...]) -> Result:
    """The worst cell of chunked prompts; solo if the release's engine accepts no images.

    Raises:
        NotApplicable: the release has none of the families.
    """
    together = images_cells(features_chunked, families, others)
    return worst_of(together or images_cells(features_solo, families, others))


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
