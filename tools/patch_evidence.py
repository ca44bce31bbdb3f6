"""The measurements of each patch: the file evidence.json in each folder of patches.

It maps a patch's id to a distribution to:

- ``measured``: the releases on which the patch was probed;
- ``results``: for each target, the result of each distinct code. A result has the fingerprint
  of the code (``body``; None if the module only imports it), the probe's verdict ``without`` and
  ``with`` the patch, the ``detail`` that it gave first, and the ``releases`` that have this code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import evidence_file
import release_sets
from packaging.version import Version

from mlx_patches.core.files import write as write_whole
from mlx_patches.core.patch import Patch
from mlx_patches.patches import catalogue

NAME = "evidence.json"
PATCHES = release_sets.ROOT / "mlx_patches" / "patches"
OTHER = release_sets.ROOT / "tools" / "evidence"
# The versions of the packages in each release set's environment.
VERSIONS = OTHER / "versions.json"
# Keys with patch ids in the evidence of the lab and of single requests.
NAMING = ("needs", "companions")

# A target's path to its cell: body, without, with, detail.
Cells = dict[str, dict[str, Any]]
# All that was measured on one release set: its name, and each patch's cells.
Evidence = dict[str, Any]


def folder_of(patch: Patch) -> Path:
    inside = patch.module.removeprefix("mlx_patches.patches.").split(".")[:-1]
    return PATCHES.joinpath(*inside)


def read(folder: Path) -> dict[str, Any]:
    """A folder's evidence; empty if nothing was measured."""
    file = folder / NAME
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text())
        for rules in found.values():
            for one in rules.values():
                for results in one["results"].values():
                    for result in results:
                        result["body"], result["without"], result["with"], result["detail"]
                        set(result["releases"]) - set(one["measured"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SystemExit(
            f"{file}: not evidence of a patch ({type(error).__name__}: {error}); restore the file,"
            " or remove it and measure again with make measure"
        ) from None
    return found  # type: ignore[no-any-return]


def write(folder: Path, evidence: dict[str, Any]) -> None:
    """Write a folder's evidence; an empty one leaves no file."""
    file = folder / NAME
    if evidence:
        text = json.dumps(evidence, indent=1)
        # Releases stand on one line.
        text = re.sub(r"\[\s+([^][{}]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", text)
        write_whole(file, text + "\n")
    else:
        file.unlink(missing_ok=True)


def add(patch: Patch, name: str, cells: Cells) -> None:
    """Replace a patch's evidence on a release set."""
    distribution, release = name.split()
    folder = folder_of(patch)
    evidence = read(folder)
    one = evidence.setdefault(patch.id, {}).setdefault(distribution, {})
    results = dict(_without(one, release))
    for target, cell in cells.items():
        code = {key: cell[key] for key in ("body", "without", "with")}
        for result in results.setdefault(target, []):
            if code.items() <= result.items():
                result["releases"] = _sort([*result["releases"], release])
                break
        else:
            results[target].append({**cell, "releases": [release]})
    for found in results.values():
        found.sort(key=lambda result: Version(result["releases"][0]))
    one.update(measured=_sort({*one.get("measured", ()), release}), results=results)
    write(folder, evidence)


def forget_patch(patch: Patch) -> None:
    folder = folder_of(patch)
    write(folder, {id_: rules for id_, rules in read(folder).items() if id_ != patch.id})


def read_versions() -> dict[str, dict[str, str]]:
    """The versions of the packages in each set that was measured at any time."""
    return evidence_file.read(VERSIONS)  # type: ignore[no-any-return]


def add_versions(versions: dict[str, dict[str, str]]) -> None:
    """Keep the versions of the packages with which release sets were measured."""
    write_whole(VERSIONS, json.dumps({**read_versions(), **versions}, indent=1) + "\n")


def read_known(patch: Patch, distribution: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The results of each target's code, by target and fingerprint, on any release."""
    results = read(folder_of(patch)).get(patch.id, {}).get(distribution, {}).get("results", {})
    return {
        (target, one["body"]): {key: value for key, value in one.items() if key != "releases"}
        for target, seen in results.items()
        for one in seen
    }


def was_red(patch: Patch, name: str, target: str, body: str | None) -> bool:
    """Whether this code of a target was red on a release set."""
    distribution, release = name.split()
    results = read(folder_of(patch)).get(patch.id, {}).get(distribution, {}).get("results", {})
    return any(
        (one["body"], one["without"]) == (body, "red") and release in one["releases"]
        for one in results.get(target, ())
    )


def take(folder: Path) -> None:
    """Add the newer measurements of other checkouts, the folders in ``folder``.

    Of the lab's evidence, which has a file for each release set, theirs replace ours.
    """
    builtin, before = catalogue.builtin(), {one["set"]: one["patches"] for one in load()}
    versions = read_versions()
    checkouts = [one for one in folder.glob("*") if any(one.rglob("*.json"))]
    if not checkouts:
        raise SystemExit(f"{folder}: no folder with checkouts that measured")
    for checkout in checkouts:
        for file in checkout.rglob(NAME):
            for id_, rules in read(file.parent).items():
                for distribution, one in rules.items():
                    for release in one["measured"]:
                        name, cells = f"{distribution} {release}", _cells(one, release)
                        if before.get(name, {}).get(id_) != cells:
                            add(builtin.get(id_), name, cells)
        theirs = checkout / "tools" / "evidence"
        if (file := theirs / VERSIONS.name).exists():
            found = evidence_file.read(file).items()
            add_versions({name: one for name, one in found if one != versions.get(name)})
        for file in theirs.glob("lab/*.json"):
            write_whole(OTHER / "lab" / file.name, file.read_text())


def prune() -> None:
    """Drop the evidence of patches that no longer exist, also where other evidence names them.

    Also on releases of a distribution in which a patch no longer has a target.
    """
    builtin = catalogue.builtin()
    known = set(builtin.ids())
    for folder in folders():
        kept = {id_: rules for id_, rules in read(folder).items() if id_ in known}
        for id_, rules in kept.items():
            own = {target.distribution for target in builtin.get(id_).targets}
            kept[id_] = {name: one for name, one in rules.items() if name in own}
        write(folder, kept)
    for file in OTHER.glob("*/*.json"):
        found = evidence_file.read(file)
        if not isinstance(found, dict):  # the evidence of requests names no patches
            continue
        named = [cells for part in NAMING for cells in found.get(part, {}).values()]
        gone = {id_ for cells in named for ids in cells.values() for id_ in ids} - known
        if gone:
            for cells in named:
                cells.update({name: [i for i in ids if i in known] for name, ids in cells.items()})
            write_whole(file, json.dumps(found, indent=1) + "\n")


def is_measured(patch: Patch, name: str) -> bool:
    distribution, release = name.split()
    one = read(folder_of(patch)).get(patch.id, {}).get(distribution, {})
    return release in one.get("measured", ())


def load() -> list[Evidence]:
    """All evidence by release set, oldest releases first."""
    sets: dict[str, Evidence] = {}
    order = catalogue.builtin().rank
    found = [(id_, rules) for folder in folders() for id_, rules in read(folder).items()]
    for id_, rules in sorted(found, key=lambda pair: order(pair[0])):
        for distribution, one in rules.items():
            for release in one["measured"]:
                name = f"{distribution} {release}"
                known = sets.setdefault(name, {"set": name, "patches": {}})
                known["patches"][id_] = _cells(one, release)
    return [sets[name] for name in sorted(sets, key=_release_order)]


def folders() -> Iterator[Path]:
    return (file.parent for file in sorted(PATCHES.rglob(NAME)))


def _cells(one: dict[str, Any], release: str) -> Cells:
    """The results of each target on a release."""
    return {
        target: {key: value for key, value in result.items() if key != "releases"}
        for target, results in one["results"].items()
        for result in results
        if release in result["releases"]
    }


def _without(one: dict[str, Any], release: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Targets and results as they were before a release was measured."""
    for target, results in one.get("results", {}).items():
        left = [
            {**result, "releases": [other for other in result["releases"] if other != release]}
            for result in results
        ]
        if kept := [result for result in left if result["releases"]]:
            yield target, kept


def _sort(releases: Iterable[str]) -> list[str]:
    return sorted(releases, key=Version)


def _release_order(name: str) -> tuple[str, Version]:
    return name.split()[0], Version(name.split()[1])
