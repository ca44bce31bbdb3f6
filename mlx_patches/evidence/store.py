"""The lab's evidence: one file a release set, a letter a cell.

g green, r red, n not applicable, i insensitive, x not built; once without and, where it was
measured, once with every patch that the release admits.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import MlxPatchesError
from .words import CANNOT_BATCH, GREEN, INSENSITIVE, NOT_BUILT, RED, REPAIRED, scenario

_HERE = Path(__file__).parent
# Release to family to the modules with a branch that only Metal takes: tools/mark_metal.py.
METAL = _HERE / "metal.json"


def folder() -> Path:
    """Where the evidence is: beside the code in a wheel, among the tools in a checkout."""
    inside = _HERE / "lab"
    return inside if inside.exists() else _HERE.parents[1] / "tools" / "evidence" / "lab"


def load(place: Path | None = None) -> list[dict[str, Any]]:
    """All evidence, releases oldest first.

    Raises:
        MlxPatchesError: a file is broken, or there is none.
    """
    from packaging.version import Version

    place = place or folder()
    try:
        found = [json.loads(file.read_bytes()) for file in place.glob("*.json")]
        found.sort(key=lambda one: (one["set"].split()[0], Version(one["set"].split()[1])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise MlxPatchesError(f"{place}: no evidence ({error}); reinstall mlx-patches") from None
    if not found:
        raise MlxPatchesError(f"{place}: no evidence; reinstall mlx-patches")
    return found


def load_set(distribution: str, version: str) -> dict[str, Any] | None:
    """The evidence of one release; None where it was not measured.

    Raises:
        MlxPatchesError: its file is broken.
    """
    return _read(folder() / f"{distribution}-{version}.json")


@functools.cache
def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
        found["without"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MlxPatchesError(f"{file}: no evidence ({error}); reinstall mlx-patches") from None
    return found


@functools.cache
def metal_branches(distribution: str, version: str) -> Mapping[str, Sequence[str]] | None:
    """Family to the modules with a branch that only Metal takes, in one release.

    Families without one are not in it; None where nobody read the release.

    Raises:
        MlxPatchesError: the file is broken.
    """
    try:
        found: Mapping[str, Mapping[str, Sequence[str]]] = json.loads(METAL.read_bytes())
        return found.get(f"{distribution} {version}")
    except (OSError, ValueError, AttributeError) as error:
        raise MlxPatchesError(f"{METAL}: no evidence ({error}); reinstall mlx-patches") from None


def needed_patches(evidence: Mapping[str, Any]) -> dict[str, list[str]]:
    """Family to the patches that its cells need; without those of which some cell is unknown."""
    found = {}
    for family, pairs in cell_pairs(evidence).items():
        needs = evidence.get("needs", {}).get(family, {})
        # A red cell that was not measured with the patches may need any of them.
        known = all(name in needs for name, pair in pairs.items() if pair in ("r", "rg"))
        if known and fate(pairs) != NOT_BUILT:
            found[family] = list(dict.fromkeys(id_ for ids in needs.values() for id_ in ids))
    return found


def cell_pairs(evidence: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Family to scenario to its letter without and, where it was measured, with the patches."""
    return {family: pairs_of(evidence, family) for family in evidence["without"]}


def pairs_of(evidence: Mapping[str, Any], family: str) -> dict[str, str]:
    """What ``cell_pairs`` has of one family; empty where it was not measured."""
    with_ = evidence.get("with", {}).get(family, {})
    without = evidence["without"].get(family, {})
    return {name: letter + with_.get(name, "") for name, letter in without.items()}


@functools.cache
def traced(place: Path | None = None) -> tuple[tuple[str, ...], frozenset[str]]:
    """The sets whose every repair was traced to patches, and the patches that some cell needed.

    Raises:
        MlxPatchesError: as ``load`` does.
    """
    found = load(place)
    ids = (
        id_
        for one in found
        for named in one.get("needs", {}).values()
        for cell in named.values()
        for id_ in cell
    )
    return tuple(one["set"] for one in found if _is_traced(one)), frozenset(ids)


def _is_traced(evidence: Mapping[str, Any]) -> bool:
    needs = evidence.get("needs", {})
    return all(
        name in needs.get(family, {})
        for family, pairs in cell_pairs(evidence).items()
        for name, pair in pairs.items()
        if pair == "rg"
    )


def fate(cells: Mapping[str, str]) -> str:
    """A family's fate: green, repaired, red, cannot-batch, insensitive or not-built."""
    pairs = cells.values()
    if any(pair[0] == "x" for pair in pairs):
        return NOT_BUILT
    if any(is_red(pair) for pair in pairs):
        return RED
    if any(pair[0] == "r" for pair in pairs):
        return REPAIRED
    if all(pair[0] == "n" for name, pair in cells.items() if scenario(name).batch):
        return CANNOT_BATCH
    return INSENSITIVE if any(pair[0] == "i" for pair in pairs) else GREEN


def is_red(pair: str) -> bool:
    """Whether a cell is red whatever is active: with the patches, or not measured with them."""
    return pair in ("r", "rr", "gr", "nr")
