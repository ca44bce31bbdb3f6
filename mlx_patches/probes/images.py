"""Results of the lab's image scenarios for whole tiny models, as a probe's result."""

from collections.abc import Callable, Sequence

from ..lab import Cell, LabModel
from ..lab.image_scenarios import features_chunked, features_solo
from . import NotApplicable, Result
from .batch_invariance import tiny
from .fixtures import with_patches


def probe_scenario(
    scenario: Callable[[LabModel], Cell], families: Sequence[str], others: tuple[str, ...]
) -> Result:
    return find_worst(run_families(scenario, families, others))


def probe_chunks(families: Sequence[str], others: tuple[str, ...]) -> Result:
    """The worst cell of chunked prompts; solo if the release's engine accepts no images."""
    batched = run_families(features_chunked, families, others)
    return find_worst(batched or run_families(features_solo, families, others))


def run_families(
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


def find_worst(cells: Sequence[Cell]) -> Result:
    if not cells:
        raise NotApplicable("the release has no such model, or batches no prompts with images")
    worst = max(cells, key=lambda cell: cell.verdict == "red")
    return Result(worst.verdict == "red", worst.detail, worst.figure)
