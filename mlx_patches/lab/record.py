"""The evidence file that ``lab --evidence`` writes.

It has the format of ``evidence.store``: one release set, device and dtype, one letter per cell.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..core import distributions
from ..core.errors import MlxPatchesError
from ..core.files import write, writing
from ..core.packages import DISTRIBUTIONS, MODELS
from ..evidence.words import LETTERS, METAL_EMULATED, NOT_BUILT, NOT_EMULATED, NOT_RUN, RED
from .metal_emulated.sites import split_by_reached
from .runner import CRASHED, PROCESS, TIMED_OUT, Row, Task

# The packages whose versions the evidence names.
MEASURED = ("mlx", *DISTRIBUTIONS.values(), "transformers")
PARTS = ("without", "with")
# If Metal was emulated: a package to its kernels that ran, and to the others.
KERNELS, RAN, NOT_REACHED = "kernels", "ran", "not_reached"
FACTS = ("set", "device", "dtype", "mlx_patches", "versions")
# The letters of red and unbuilt cells, which need a detail.
DETAILED = {LETTERS[RED], LETTERS[NOT_BUILT]}

Cells = dict[str, dict[str, str]]


def check_ended(rows: Iterable[Mapping[str, Any]]) -> None:
    """Check that every process measured all it was to measure, so that its rows are evidence."""
    for row in rows:
        is_late = row["detail"].startswith((TIMED_OUT, CRASHED))
        if row["verdict"] == NOT_RUN or row["scenario"] == PROCESS or is_late:
            where = f"{row['family']}, {row['scenario']}"
            raise MlxPatchesError(f"{where}: {row['detail']}; nothing was recorded, measure again")


def letters(rows: Sequence[Mapping[str, Any]]) -> Cells:
    """Family to scenario to the cell's letter; see ``check_ended``."""
    check_ended(rows)
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["verdict"] != NOT_EMULATED:
            found[row["family"].partition(":")[2]][row["scenario"]] = LETTERS[row["verdict"]]
    return dict(found)


def details(rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Family to scenario to the detail of each red or unbuilt cell."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if LETTERS.get(row["verdict"]) in DETAILED:
            found[row["family"].partition(":")[2]][row["scenario"]] = row["detail"]
    return dict(found)


def kernels(rows: Sequence[Row]) -> dict[str, dict[str, list[str]]]:
    """Package to the kernels that ran and that did not; empty if Metal was not emulated."""
    if not any(row.device == METAL_EMULATED for row in rows):
        return {}
    ran = {one for row in rows for one in row.kernels.split()}
    found = {package: split_by_reached(package, ran) for package in MODELS}
    return {
        package: {RAN: list(map(str, both[0])), NOT_REACHED: list(map(str, both[1]))}
        for package, both in found.items()
        if any(both)
    }


def check_tasks(tasks: Sequence[Task], path: Path) -> None:
    """Refuse tasks whose results cannot be written as evidence, before anything runs."""
    names = sorted({task.family.distribution for task in tasks})
    if len(names) > 1:
        flags = " or ".join(f"--model {name}" for name in names)
        raise MlxPatchesError(f"an evidence file holds the families of one package: add {flags}")
    for name in names:
        found = distributions.find(name)
        if found and (found.commit or found.editable):
            raise MlxPatchesError(
                f"evidence must come from a release, but this {name} was installed from source:"
                " install a release"
            )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise MlxPatchesError(
            f"{path}: cannot be written (it is a folder, or its folder does not exist)"
        )


def evidence(rows: Sequence[Row]) -> dict[str, Any]:
    """A run's rows as evidence; refused unless they are of one package, device and dtype."""
    names = {row.family.partition(":")[0] for row in rows}
    devices = {row.device for row in rows if row.device}
    dtypes = {row.dtype for row in rows}
    if not (len(names) == len(devices) == len(dtypes) == 1):
        raise MlxPatchesError(
            "an evidence file holds one package, device and dtype; this run measured"
            f" {_list_names(names)} on {_list_names(devices)} in {_list_names(dtypes)}"
        )
    versions = {name: found.version for name in MEASURED if (found := distributions.find(name))}
    (name,) = names
    facts = (f"{name} {versions[name]}", *devices, *dtypes, __version__, versions)
    result: dict[str, Any] = dict(zip(FACTS, facts, strict=True))
    ordered = sorted(rows, key=lambda row: row.family)
    for part in PARTS:
        own = [row.as_dict() for row in ordered if row.patched == (part == "with")]
        if own:
            result[part], result[f"details_{part}"] = letters(own), details(own)
    if emulated := kernels(rows):
        result[KERNELS] = emulated
    return result


def save(path: Path, content: Mapping[str, Any]) -> None:
    with writing(path):
        write(path, json.dumps(content, indent=1) + "\n")


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
