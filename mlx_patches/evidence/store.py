"""The lab's evidence: one file per release set, one letter per cell result.

All cells were measured without patches, some also with every patch that applies to the release.
Measurements on other devices or dtypes than a CPU in float32 are in separate files,
``SET-DEVICE-DTYPE.json``; their cells are read as further cells of the set, with the device and
dtype in their names. A broken file raises ``MlxPatchesError``.
"""

import contextlib
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import MlxPatchesError
from . import words

_HERE = Path(__file__).parent
# Release to family to the modules with Metal-only code, written by tools/mark_code.py.
METAL = _HERE / "metal.json"
_PLAIN = (words.CPU, words.FLOAT32)
# A set's name that is safe in a file name: broken metadata may contain anything.
_SET = re.compile(r"[\w-]+ [\w.+!-]{1,100}")
# The keys of a file whose values are by family and cell.
_CELLS = ("without", "with", "details_without", "details_with", "needs", "companions")


@functools.cache
def folder() -> Path:
    """The folder of the evidence: next to the code in a wheel, below ``tools`` in a checkout."""
    inside = _HERE / "lab"
    return inside if inside.exists() else _HERE.parents[1] / "tools" / "evidence" / "lab"


def load(place: Path | None = None) -> list[dict[str, Any]]:
    from packaging.version import Version

    place = place or folder()
    with reading(place):
        read = list(map(_parse, sorted(place.glob("*.json"))))
        names = dict.fromkeys(one["set"] for one in read)
        found = [_join([one for one in read if one["set"] == name]) for name in names]
        found.sort(key=lambda one: (one["set"].split()[0], Version(one["set"].split()[1])))
    if not found:
        raise MlxPatchesError(f"{place}: no evidence; reinstall mlx-patches")
    return found


def load_set(name: str) -> Mapping[str, Any] | None:
    """The evidence of a set, such as ``mlx-lm 0.32.2``; None if it was not measured."""
    return _read(folder() / f"{name.replace(' ', '-')}.json") if _SET.fullmatch(name) else None


def families_of(name: str) -> list[str]:
    return list((load_set(name) or {"without": ()})["without"])


@functools.cache
def _read(file: Path) -> dict[str, Any] | None:
    files = [*([file] if file.exists() else []), *sorted(file.parent.glob(f"{file.stem}-*.json"))]
    with reading(file):
        return _join(list(map(_parse, files))) if files else None


def _parse(file: Path) -> dict[str, Any]:
    with reading(file):
        return dict(json.loads(file.read_bytes()))


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of a broken evidence file into one line that names it."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise MlxPatchesError(f"{path}: no evidence ({error}); reinstall mlx-patches") from None


def place_measured(evidence: Mapping[str, Any]) -> tuple[str, str]:
    return evidence.get("device", words.CPU), evidence.get("dtype", words.FLOAT32)


def _join(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join a set's evidence of all devices and dtypes; that of a CPU in float32 is unchanged."""
    plain = [one for one in parts if place_measured(one) == _PLAIN]
    facts = {name: one for name, one in parts[0].items() if name not in _CELLS}
    found = plain[0] if plain else {**facts, "without": {}}
    found["without"]
    for one in parts:
        if one not in plain:
            found = _with_cells_of(found, one)
    return found


def _with_cells_of(evidence: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Add the cells of another device or dtype to a set's evidence, if they are green or red.

    Insensitive or unbuilt cells are skipped: they are no evidence about other devices and dtypes.
    """
    at, result = words.cell_name("", *place_measured(other)), dict(evidence)
    pairs = {
        (family, name): pair
        for family, cells in cell_pairs(other).items()
        for name, pair in cells.items()
        if set(pair) <= {"g", "r"} or pair == "nr"
    }
    for part in set(_CELLS) & other.keys():
        families = dict(evidence.get(part, {}))
        for family, cells in other[part].items():
            if more := {n + at: cell for n, cell in cells.items() if (family, n) in pairs}:
                families[family] = {**families.get(family, {}), **more}
        result[part] = families
    if "needs" in evidence:
        # A repaired scenario that was not traced on this device is assumed to need the same patches
        # as on a CPU in float32.
        needs = result["needs"] = {family: dict(one) for family, one in result["needs"].items()}
        for (family, name), pair in pairs.items():
            if pair == "rg" and (ids := evidence["needs"].get(family, {}).get(name)) is not None:
                needs[family].setdefault(name + at, ids)
    return result


@functools.cache
def metal_branches(name: str) -> Mapping[str, Sequence[str]] | None:
    """Family to the modules with Metal-only code, in one set.

    Families without such a module are skipped; None if the set was not examined.
    """
    with reading(METAL):
        found: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(METAL.read_bytes())
        return found.get(name)


def cell_pairs(evidence: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Family to scenario to its letters: without patches and, if measured, with them."""
    return {family: pairs_of(evidence, family) for family in evidence["without"]}


def pairs_of(evidence: Mapping[str, Any], family: str) -> dict[str, str]:
    """The ``cell_pairs`` of one family; empty if it was not measured."""
    with_ = evidence.get("with", {}).get(family, {})
    without = evidence["without"].get(family, {})
    return {name: letter + with_.get(name, "") for name, letter in without.items()}


def is_traced(evidence: Mapping[str, Any]) -> bool:
    """Whether a set was measured with the patches and every repair was traced."""
    needs = evidence.get("needs", {})
    return "with" in evidence and all(
        name in needs.get(family, {})
        for family, pairs in cell_pairs(evidence).items()
        for name, pair in pairs.items()
        if pair == "rg"
    )
