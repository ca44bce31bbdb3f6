"""The lab's scenarios of a release, for one request alone: they have no family.

They run only where they are named, as in ``mlx-patches lab --scenario streamed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..evidence.results import NotApplicable
from ..evidence.words import NOT_APPLICABLE, RED, RESULTS
from . import Cell, draws, engine, stops, streamed

Cells = Iterator[tuple[str, Cell]]
# By name: the function that yields, for a distribution without or with the patches, a name and a
# cell for each case.
RELEASE_SCENARIOS: dict[str, Callable[[str, bool], Cells]] = {
    "streamed": streamed.cells,
    "draws": draws.cells,
    "stops": stops.cells,
}


def cells(scenario: str, distribution: str, patched: bool) -> Cells:
    """A scenario's cells, then one for all of them: the worst, with the names of those like it."""
    found: dict[str, Cell] = {}
    try:
        for name, cell in RELEASE_SCENARIOS[scenario](distribution, patched):
            found[name] = cell
            yield f"{scenario}:{name}", cell
    except NotApplicable as reason:
        found[""] = Cell(NOT_APPLICABLE, str(reason))
    except Exception as error:
        found[""] = Cell(RED, engine.where(error))
    verdict = min((cell.verdict for cell in found.values()), key=RESULTS.index)
    same = {name: cell for name, cell in found.items() if cell.verdict == verdict}
    named = f": {', '.join(same)}" if verdict == RED and any(same) else ""
    said = f"{len(same)} of {len(found)} cases{named}" if any(found) else found[""].detail
    yield scenario, Cell(verdict, said)
