"""The lab's scenarios for single requests to a release; they have no family.

They run only if named, for example with ``mlx-patches lab --scenario streamed``.
"""

from collections.abc import Callable, Iterator

from ..evidence.words import NOT_RUN, RED, RESULTS
from . import Cell, draws, engine, stops, streamed

Cells = Iterator[tuple[str, Cell]]
# Scenario name to a function that yields a name and a cell for each case of a distribution,
# without or with the patches.
RELEASE_SCENARIOS: dict[str, Callable[[str, bool], Cells]] = {
    "streamed": streamed.cells,
    "draws": draws.cells,
    "stops": stops.cells,
}


def cells(scenario: str, distribution: str, patched: bool) -> Cells:
    """A scenario's cells, then the worst of them with the names of all equally bad ones."""
    found: dict[str, Cell] = {}
    try:
        for name, cell in RELEASE_SCENARIOS[scenario](distribution, patched):
            found[name] = cell
            yield f"{scenario}:{name}", cell
    except Exception as error:
        found[""] = engine.judge_error(error)
    verdict = min((cell.verdict for cell in found.values()), key=RESULTS.index)
    same = {name: cell for name, cell in found.items() if cell.verdict == verdict}
    named = f": {', '.join(same)}" if verdict == RED and any(same) else ""
    detail = f"{len(same)} of {len(found)} cases{named}"
    if verdict == NOT_RUN or not any(found):
        detail = next(iter(same.values())).detail
    yield scenario, Cell(verdict, detail)
