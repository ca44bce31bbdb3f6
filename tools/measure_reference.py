"""Compares every family of a release set with transformers, and keeps the result as evidence.

    python tools/measure_reference.py --set 'mlx-lm 0.32.2'                  its own environment
    python tools/measure_reference.py --set 'mlx-lm 0.32.2' --python PYTHON  one that is there
    ... --rows FILE   from the rows of `lab --reference --both --out FILE` on another machine

The environment has the extra ``reference``. A cell that the patches turn green is measured again
without each of the patches that may repair it, so the evidence names the patches that it needs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence_file
import lab_evidence
import release_sets
from release_sets import ROOT

from mlx_patches.activation import settings
from mlx_patches.core.packages import package_of
from mlx_patches.core.patch import Patch
from mlx_patches.evidence import outside
from mlx_patches.evidence.words import GREEN, LETTERS, RED
from mlx_patches.lab import reference
from mlx_patches.lab.record import PARTS, check_ended
from mlx_patches.patches import catalogue

EVIDENCE = ROOT / "tools" / "evidence" / "reference"
# The modules of models that every family loads by.
GENERAL = ("base", "rope_utils")
CONFIGS = {outside.PLAIN, outside.THETA, outside.WINDOW, *reference.DATA["ropes"]}
# Seconds for all families, and for one.
SECONDS, ONE = 7200, 600

Rows = list[dict[str, Any]]
# Model type to config to something of that cell.
Cells = dict[str, dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", required=True, help="the release set")
    parser.add_argument("--python", type=Path, help="an environment of this set, with the extra")
    parser.add_argument("--rows", type=Path, help="rows that were measured elsewhere")
    parser.add_argument("--no-needs", action="store_true", help="trace no cell's patches: hours")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    one = release_sets.find(options.set)
    with tempfile.TemporaryDirectory() as folder:
        python = options.python
        if python is None:
            made = release_sets.make(one, Path(folder), "--group", "test")
            uv = (sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(made))
            subprocess.run([*uv, "-e", ".[reference]"], check=True, cwd=ROOT)
            python = made
        rows = evidence_file.read_lines(options.rows) if options.rows else []
        rows = rows or run(python, [one.distribution], options.jobs, "--both")
        check_ended(rows)
        found = build_evidence(one, python, rows)
        if not options.no_needs:
            found["needs"] = needs(python, one.distribution, list_repaired(rows), options.jobs)
    file = EVIDENCE / f"{one.slug}.json"
    evidence_file.save(file, found)
    print(f"{file.relative_to(ROOT)}: {len(found['without'])} model types")


def build_evidence(one: release_sets.ReleaseSet, python: Path, rows: Rows) -> dict[str, Any]:
    parts = by_part(rows)
    return {
        "set": one.name,
        "outside": name_outside(rows),
        "versions": release_sets.versions(python),
        **{name: letters(part) for name, part in parts.items()},
        "crash": crashes(parts),
    }


def by_part(rows: Rows) -> dict[str, Cells]:
    return {
        part: cells(row for row in rows if row["patched"] == (part == "with")) for part in PARTS
    }


def list_repaired(rows: Rows) -> Cells:
    """Model type to config to the released row, for each cell that the patches turn green."""
    before, after = by_part(rows).values()
    return {
        kind: names
        for kind, own in before.items()
        if (names := {n: own[n] for n in own if is_repaired(own[n], after.get(kind, {}).get(n))})
    }


def run(
    python: Path,
    models: Sequence[str],
    jobs: int,
    mode: str,
    off: str = "",
    scenarios: Sequence[str] = (reference.NAME,),
    kind: str = "--reference",
) -> Rows:
    """The rows of scenarios of the lab; ``off``: a patch that is switched off."""
    flags = [flag for model in models for flag in ("--model", model)]
    flags += [flag for scenario in scenarios for flag in ("--scenario", scenario)]
    flags += [kind, mode, "--jobs", str(jobs), "--timeout", str(ONE)]
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    variables = {"PYTHONPATH": os.pathsep.join(paths), settings.DISABLE: off}
    return lab_evidence.run_lab(python, *flags, seconds=SECONDS, variables=variables)


def cells(rows: Iterable[Mapping[str, Any]]) -> Cells:
    """Model type to config to its row, of the compared families."""
    found: Cells = defaultdict(dict)
    for row in rows:
        own = row["family"].partition(":")[2]
        scenario, _, name = row["scenario"].partition(":")
        if scenario != reference.NAME or not name:
            continue
        first, _, rest = name.partition(" ")
        kind, name = (own, name) if first in CONFIGS or "=" in first else (first, rest)
        if LETTERS[row["verdict"]] in "gr":
            found[kind][name] = row
    return dict(found)


def letters(part: Cells) -> Cells:
    return {
        kind: {name: LETTERS[row["verdict"]] for name, row in own.items()}
        for kind, own in sorted(part.items())
    }


def is_crash(row: Mapping[str, Any]) -> bool:
    """Whether a red cell's model did not load or run."""
    return row["verdict"] == RED and "of the scale" not in row["detail"]


def crashes(
    parts: Mapping[str, Cells], is_crash: Callable[[Mapping[str, Any]], bool] = is_crash
) -> dict[str, list[str]]:
    """Model type to its cells that crash, as released or with the patches."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for part in parts.values():
        for kind, own in part.items():
            found[kind].update((name, None) for name, row in own.items() if is_crash(row))
    return {kind: [*names] for kind, names in sorted(found.items()) if names}


def name_outside(rows: Iterable[Mapping[str, Any]]) -> str:
    """The other implementation and its version, from the summary of a family."""
    others = (row["detail"].partition("against ")[2].partition(":")[0] for row in rows)
    return next(filter(None, others), "")


def is_repaired(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> bool:
    """Whether a config's red cell is green with the patches."""
    return before["verdict"] == RED and after is not None and after["verdict"] == GREEN


def needs(
    python: Path, distribution: str, todo: Cells, jobs: int
) -> dict[str, dict[str, list[str]]]:
    """Model type to config to the patches without which it is red."""
    families = sorted({row["family"] for names in todo.values() for row in names.values()})
    return trace(
        todo,
        lambda p: [one for one in families if concerns(p, distribution, one.partition(":")[2])],
        lambda own, off: cells(run(python, own, jobs, "--patched", off)),
    )


def trace(
    todo: Cells,
    owners: Callable[[Patch], Sequence[str]],
    run: Callable[[Sequence[str], str], Cells],
) -> dict[str, dict[str, list[str]]]:
    """Each repaired cell to the patches without which it is red.

    Args:
        owners: the families that a patch may repair.
        run: the cells of some families, without one patch.
    """
    found: dict[str, dict[str, list[str]]] = {
        kind: {name: [] for name in names} for kind, names in todo.items()
    }
    for patch in catalogue.builtin():
        seen = run(own, patch.id) if (own := owners(patch)) else {}
        for kind, names in found.items():
            for name, ids in names.items():
                if seen.get(kind, {}).get(name, {}).get("verdict") == RED:
                    ids.append(patch.id)
    return found


def concerns(patch: Patch, distribution: str, family: str) -> bool:
    """Whether a patch changes a family's own modules, or those that every family loads by."""
    package = [package_of(distribution), "models"]
    places = (t.module.split(".") for t in patch.targets if t.distribution == distribution)
    return any(place[:2] == package and place[2] in (family, *GENERAL) for place in places)


if __name__ == "__main__":
    evidence_file.run(main)
