"""Derives the matrix's model entries from the lab's evidence: which patches each family needs.

A family's entry lists the patches that target its own module, those that any of its cells needed
in any release, and their companions: patches that keep a right cell right beside them. It holds
for the release sets that were traced, those in which the needs of every repaired cell are known,
except where the family could not be built. A family that was built in none of them gets all
generic patches: those that target no family's module. So does the entry ``default``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import release_sets  # noqa: F401  puts this repository's package on the path

from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.core.patch import Patch
from mlx_patches.evidence.store import is_traced
from mlx_patches.patches import catalogue

_MODULE = re.compile(rf"({'|'.join(map(re.escape, MODEL_PACKAGES))})\.([\w-]+)")

Rows = dict[str, dict[str, list[str]]]


def list_measured(evidence: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By distribution, the release sets for which entries hold."""
    traced = list(filter(is_traced, evidence))
    known = families(traced)
    found: dict[str, list[dict[str, Any]]] = {}
    for name in MODEL_PACKAGES.values():
        if sets := [describe_set(one, known) for one in traced if owner(one) == name]:
            found[name] = sets
    return found


def rows(evidence: list[dict[str, Any]], always: list[str]) -> Rows:
    """The entries: model to distribution to patch ids in registry order; ``default`` first."""
    order = catalogue.builtin().ids()
    patches = [patch for patch in catalogue.builtin() if patch.id not in always]
    known, measured = families(evidence), families(filter(is_traced, evidence))
    needed: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in evidence:
        for part in ("needs", "companions"):
            for family, by_scenario in one.get(part, {}).items():
                needed[owner(one), family].update(*by_scenario.values())
    own: dict[tuple[str, str], set[str]] = defaultdict(set)
    generic = []
    for patch in patches:
        places = owners(patch) & known
        for place in places:
            own[place].add(patch.id)
        if not places and not patch.optional:
            generic.append(patch.id)
    found: Rows = {"default": dict.fromkeys(MODEL_PACKAGES.values(), generic)}
    for place in sorted(measured | own.keys(), key=lambda place: place[::-1]):
        others = needed[place].difference(always) if place in measured else set(generic)
        distribution, family = place
        found.setdefault(family, {})[distribution] = sorted(own[place] | others, key=order.index)
    return found


def owner(one: dict[str, Any]) -> str:
    """The distribution of the families in a set's evidence."""
    name: str = one["set"].split()[0]
    return name


def describe_set(one: dict[str, Any], known: set[tuple[str, str]]) -> dict[str, Any]:
    """A set's model packages, and the known families that could not be built there."""
    versions = {name: one["versions"].get(name) for name in MODEL_PACKAGES.values()}
    found: dict[str, Any] = {"releases": {name: one for name, one in versions.items() if one}}
    missing = {(owner(one), name) for name, cells in one["without"].items() if is_unbuilt(cells)}
    if unbuilt := sorted(name for _, name in missing & known):
        found["unbuilt"] = unbuilt
    return found


def is_unbuilt(cells: dict[str, str]) -> bool:
    return "x" in cells.values()


def families(evidence: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """(distribution, family) of every family that was built in some of these sets."""
    return {
        (owner(one), family)
        for one in evidence
        for family, cells in one["without"].items()
        if not is_unbuilt(cells)
    }


def owners(patch: Patch) -> set[tuple[str, str]]:
    """(distribution, family module) of the patch's targets in model modules."""
    found = (_MODULE.match(target.module) for target in patch.targets)
    return {(MODEL_PACKAGES[match[1]], match[2]) for match in found if match}
