"""Measure a user's config for the audit; the result has the evidence format."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core import distributions
from ..core.errors import MlxPatchesError
from ..core.files import shell_word
from ..core.model_files import read_config
from ..core.packages import CORE
from ..evidence.words import GREEN, LETTERS, NOT_APPLICABLE
from . import runner
from .runner import PROCESS, TIMED_OUT, Row, Task
from .shrink import odd_number

# Time limit of the parallel processes, which keeps an audit under 30 s.
SECONDS = 26.0
Report = Callable[[Task, list[Row]], None]
Evidence = dict[str, dict[str, Any]]


def evidence_of(folder: Path, report: Report = lambda task, rows: None) -> Evidence:
    """Measure a folder's shrunk config; returns evidence by distribution.

    Every package that implements the model is measured in parallel processes, without patches and
    with those of the model's entry. Scenarios that time out are dropped, and ``note`` reports how
    many. The weights are read, and the folder's code is run, only if it names a ``model_file`` and
    the user consents.
    """
    # The folder's own code is run as it is: only full-size models have weights.
    own_code = read_config(folder).get("model_file")
    tasks = runner.tasks(weights=folder) if own_code else runner.tasks(config=folder)
    rows = runner.run(tasks, len(tasks), SECONDS, report=report)
    if odd_number(read_config(folder)) and (why := runner.why_unbuilt(folder, rows)):
        raise MlxPatchesError(why)
    found = {}
    for name in dict.fromkeys(task.family.distribution for task in tasks):
        own = [row for row in rows if row.family.startswith(f"{name}:")]
        found[name] = _evidence(name, own, tasks[0].scenarios)
    if not any(cells for one in found.values() for cells in one["without"].values()):
        raise MlxPatchesError(
            f"no scenario of {folder} finished within {SECONDS:g} s: run"
            f" mlx-patches lab --config {shell_word(folder)}, which has a longer --timeout"
        )
    return found


def _evidence(distribution: str, rows: list[Row], scenarios: Iterable[str]) -> dict[str, Any]:
    installed = [one for one in map(distributions.find, CORE) if one]
    without, with_ = ({r.scenario: r for r in rows if r.patched is p} for p in (False, True))
    late = [
        cells.pop(PROCESS)
        for cells in (without, with_)
        if PROCESS in cells and cells[PROCESS].detail.startswith(TIMED_OUT)
    ]
    # Cells need both modes: if only one mode crashed, the other counts as green.
    for one, other in ((without, with_), (with_, without)):
        if PROCESS in one and PROCESS not in other:
            other[PROCESS] = replace(one[PROCESS], verdict=GREEN, detail="")
    # After a timeout, only scenarios that finished in both modes count.
    both = [name for name in without if not late or name in with_]
    missing = len(set(scenarios) - set(both)) if late else 0
    family = rows[0].family.partition(":")[2]
    found: dict[str, Any] = {
        "set": next(str(one) for one in installed if one.name == distribution),
        "versions": {one.name: one.version for one in installed},
        "device": next((row.device for row in rows if row.device), ""),
        "dtype": rows[0].dtype,
        "note": f"{distribution}: {missing} scenarios did not end within {SECONDS:g} s"
        if missing
        else "",
    }
    for part, cells in (("without", without), ("with", with_)):
        kept = {name: cells[name] for name in both if name in cells}
        found[part] = {family: {name: LETTERS[row.verdict] for name, row in kept.items()}}
        found[f"details_{part}"] = {
            family: {
                name: row.detail
                for name, row in kept.items()
                if row.verdict not in (GREEN, NOT_APPLICABLE)
            }
        }
    return found
