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
from ..core.packages import DISTRIBUTIONS, MODEL_PACKAGES, MODELS
from ..evidence.words import (
    DEVICES,
    DTYPES,
    LETTERS,
    METAL_EMULATED,
    NOT_BUILT,
    NOT_RUN,
    RED,
    SCENARIOS,
    current_id,
)
from .child import BUILD
from .metal_emulated.sites import split_by_reached
from .runner import Row, Task

# The packages whose versions the evidence names.
MEASURED = ("mlx", *DISTRIBUTIONS.values(), "transformers")
PARTS = ("without", "with")
_TEXTS = tuple(f"details_{part}" for part in PARTS)
# If Metal was emulated: a package to its kernels that ran, and to the others.
KERNELS, RAN, NOT_REACHED = "kernels", "ran", "not_reached"
_FACTS = ("set", "device", "dtype", "mlx_patches", "versions")
# The letters of red and unbuilt cells, which need a detail.
_DETAILED = {LETTERS[RED], LETTERS[NOT_BUILT]}
# In bytes; a release's evidence is much smaller.
_LARGEST = 16 * 2**20

Cells = dict[str, dict[str, str]]


def letters(rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Family to scenario to the cell's letter."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["verdict"] != NOT_RUN:
            found[row["family"].partition(":")[2]][row["scenario"]] = LETTERS[row["verdict"]]
    return dict(found)


def details(rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Family to scenario to the detail of each red or unbuilt cell."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if LETTERS.get(row["verdict"]) in _DETAILED:
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
    result: dict[str, Any] = dict(zip(_FACTS, facts, strict=True))
    ordered = sorted(rows, key=lambda row: row.family)
    for part in PARTS:
        own = [row.as_dict() for row in ordered if row.patched == (part == "with")]
        if own:
            result[part], result[f"details_{part}"] = letters(own), details(own)
    if emulated := kernels(rows):
        result[KERNELS] = emulated
    return result


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write evidence."""
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be written: {error.strerror}") from None


def read(path: Path) -> dict[str, Any]:
    """Read and check an evidence file, which may come from a third party.

    Raises:
        MlxPatchesError: the file is not evidence; the message names the first problem.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise MlxPatchesError(f"{path}: too large for evidence (over 16 MiB)")
        content = json.loads(text)
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise MlxPatchesError(f"{path}: not JSON: {error}") from None
    problem = _problem(_rename_scenarios(content))
    if problem:
        raise MlxPatchesError(f"{path}: not evidence of `mlx-patches lab`: {problem}")
    return dict(content)


def _rename_scenarios(content: Any) -> Any:
    """Replace the former ids of scenarios in evidence."""
    for part in (*PARTS, *_TEXTS) if isinstance(content, dict) else ():
        if _is_table(cells := content.get(part)):
            content[part] = {
                family: {current_id(name): value for name, value in named.items()}
                for family, named in cells.items()
            }
    return content


def _problem(content: Any) -> str:
    """The first reason why this is not evidence; empty if it is."""
    if not isinstance(content, dict):
        return "not an object"
    for name in (*_FACTS, "without", "details_without"):
        if name not in content:
            return f"{name!r} is missing"
    if ("with" in content) != ("details_with" in content):
        return "only one of 'with' and 'details_with' is there"
    known = {*_FACTS, *PARTS, *_TEXTS, KERNELS}
    if strange := [name for name in content if name not in known]:
        return f"unknown key {strange[0]!r}"
    if not _is_kernels(content.get(KERNELS, {})):
        return f"{KERNELS!r} does not map packages to lists of kernels, {RAN} and {NOT_REACHED}"
    return _problem_of_facts(content) or _problem_of_cells(content)


def _problem_of_facts(content: Mapping[str, Any]) -> str:
    versions = content["versions"]
    if not _is_texts(versions):
        return "'versions' is not an object of strings"
    name, _, version = str(content["set"]).partition(" ")
    if name not in MODEL_PACKAGES.values() or versions.get(name) != version:
        return f"set {content['set']!r} is not a release in 'versions'"
    if "mlx" not in versions:
        return "'versions' has no mlx"
    for fact, choices in (("device", DEVICES), ("dtype", DTYPES)):
        if content[fact] not in tuple(choices):
            return f"{fact} {content[fact]!r} is not one of {_list_names(choices)}"
    return "" if isinstance(content["mlx_patches"], str) else "'mlx_patches' is not a string"


def _problem_of_cells(content: Mapping[str, Any]) -> str:
    for part in (one for one in PARTS if one in content):
        cells, details_ = content[part], content[f"details_{part}"]
        if not _is_table(cells) or not _is_table(details_):
            return f"{part!r} or its details do not map families to scenarios to strings"
        for family, named in cells.items():
            where = f"{part!r}, family {family!r}"
            for name, letter in named.items():
                if name not in (*SCENARIOS, BUILD):
                    return f"{where}: unknown scenario {name!r}"
                if letter not in LETTERS.values():
                    return f"{where}, {name}: unknown letter {letter!r}"
                if letter in _DETAILED and name not in details_.get(family, {}):
                    return f"{where}, {name}: no detail of the failure"
    if not content["without"]:
        return "no family was measured"
    both = content.get("with", content["without"])
    if other := sorted(both.keys() ^ content["without"].keys()):
        return f"family {other[0]!r} was not measured both without and with the patches"
    return ""


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_texts, value.values()))


def _is_kernels(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(both, dict)
        and both.keys() == {RAN, NOT_REACHED}
        and all(isinstance(calls, list) for calls in both.values())
        and all(isinstance(call, str) for calls in both.values() for call in calls)
        for both in value.values()
    )


def _list_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
