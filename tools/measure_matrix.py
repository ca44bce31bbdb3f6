"""Measures every patch on every release set, and writes the matrix from the evidence.

    python tools/measure_matrix.py               measure the patches without evidence, then write
    python tools/measure_matrix.py --write       only write the matrix
    python tools/measure_matrix.py --patch offset-alias --distinct
                                                 measure it once for each distinct code
    python tools/measure_matrix.py --distinct    on a new set, measure only code that no other has
    python tools/measure_matrix.py --set 'mlx-lm 0.31.3' --patch offset-alias --again

uv makes a temporary environment for each set. The evidence is a file in each folder of patches
(see patch_evidence.py). Needs uv.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import declarations
import evidence_file
import matrix_file
import patch_evidence
import release_sets
import shards
from patch_evidence import Cells
from release_sets import ReleaseSet

from mlx_patches.evidence.words import NOT_RUN
from mlx_patches.patches import catalogue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", help="only this set")
    parser.add_argument("--patch", action="append", dest="patches", help="only this patch")
    shards.add_option(parser, "set")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="also measure what has evidence")
    parser.add_argument(
        "--distinct", action="store_true", help="once for each distinct code; a named patch anew"
    )
    parser.add_argument("--take", type=Path, help="a folder of checkouts that measured too")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the matrix")
    options = parser.parse_args()
    declarations.write()
    for id_ in options.patches or ():
        catalogue.builtin().get(id_)  # an unknown id raises
    declarations.check_probes()
    if options.take:
        patch_evidence.take(options.take)
    if not options.write:
        sets = options.shard.of(list(release_sets.load().values()))
        if options.sets:
            sets = [release_sets.find(name) for name in options.sets]
        started = time.monotonic()
        Measuring(options.patches, options.again, options.distinct).run(sets, options.jobs)
        print_unmeasured(options.patches, (time.monotonic() - started) / max(len(sets), 1))
    patch_evidence.prune()
    matrix_file.write()


@dataclass
class Measured:
    """The measurements of a set: each patch's cells, and the versions of the set's packages."""

    name: str
    cells: dict[str, Cells] = field(default_factory=dict)
    versions: dict[str, str] | None = None

    def add(self) -> None:
        for id_, cells in self.cells.items():
            patch_evidence.add(catalogue.builtin().get(id_), self.name, cells)
            seen = [
                " and ".join(sorted({cell[part] for cell in cells.values()} or {"absent"}))
                for part in ("without", "with")
            ]
            print(f"{self.name}: {id_}: {seen[0]} without it, {seen[1]} with it", flush=True)
        if self.versions:
            patch_evidence.add_versions({self.name: self.versions})


class Measuring:
    """Measures patches on release sets, several sets at a time.

    Args:
        patches: only these ids; None for all.
        again: also where there is evidence.
        distinct: not where all targets of a patch have code that another of these sets has.
    """

    def __init__(
        self, patches: list[str] | None = None, again: bool = False, distinct: bool = False
    ):
        self.patches = patches
        self.again = again
        self.distinct = distinct
        self._turn = threading.Lock()
        self._seen: set[tuple[Any, ...]] = set()

    def run(self, sets: Iterable[ReleaseSet], jobs: int) -> None:
        """Measure the sets, ``jobs`` at a time, and add the results to the evidence.

        ``distinct`` measures a named patch anew: its old evidence is of another probe or patch, and
        is dropped once every set was measured.
        """
        anew = self.patches if self.distinct else None
        with ThreadPoolExecutor(jobs) as pool:
            found = pool.map(self.measure if anew else self._record, sets)
            if anew:
                measured = list(found)
                with evidence_file.lock():
                    for id_ in anew:
                        patch_evidence.forget_patch(catalogue.builtin().get(id_))
                    for one in measured:
                        one.add()
            else:
                list(found)

    def _record(self, one: ReleaseSet) -> None:
        measured = self.measure(one)
        with evidence_file.lock():
            measured.add()

    def measure(self, one: ReleaseSet) -> Measured:
        builtin, found = catalogue.builtin(), Measured(one.name)
        own = [
            patch
            for patch in builtin
            if any(t.distribution == one.distribution and not t.supports for t in patch.targets)
        ]
        measured = [patch.id for patch in own if patch_evidence.is_measured(patch, one.name)]
        wanted = [p.id for p in own if self.patches is None or p.id in self.patches]
        todo = [id_ for id_ in wanted if self.again or id_ not in measured]
        if usual := [id_ for id_ in todo if not builtin.get(id_).mlx]:
            with release_sets.environment(one) as python:
                found.versions = release_sets.versions(python)
                if {*measured} - {*todo}:
                    before = patch_evidence.read_versions().get(one.name)
                    release_sets.check_versions(one, before, found.versions)
                if self.distinct:
                    usual = self._with_new_code(one, python, usual, found)
                rows = run_probes(one, python, usual) if usual else []
                if not (self.distinct and self.patches):  # else the probe may have changed
                    check_not_lost(one, rows)
                found.cells |= {id_: cells_of(id_, rows) for id_ in usual}
        for id_ in todo:
            if mlx := builtin.get(id_).mlx:  # whatever MLX the set's date gives
                rows = []
                try:
                    with release_sets.environment(one.with_mlx(mlx[-1])) as python:
                        rows = run_probes(one, python, [id_])
                except release_sets.Unsolvable:
                    pass  # the release accepts no MLX that has the defect
                found.cells[id_] = cells_of(id_, rows)
        return found

    def _with_new_code(
        self, one: ReleaseSet, python: Path, todo: list[str], measured: Measured
    ) -> list[str]:
        """The patches with target code in this set that earlier sets do not have.

        On a new set, a patch whose targets' code was all measured on other sets gets their
        evidence.
        """
        found: dict[str, list[Any]] = {}
        for row in child(one, python, todo, "--code"):
            found.setdefault(row["patch"], []).append((row["target"], row["body"]))
        is_new = not self.patches and one.name not in patch_evidence.read_versions()
        for id_ in todo if is_new else ():
            patch = catalogue.builtin().get(id_)
            known = patch_evidence.read_known(patch, one.distribution)
            supporting = {target.path for target in patch.targets if target.supports}
            here = [code for code in found[id_] if code[1] and code[0] not in supporting]
            if all(code in known for code in here):
                measured.cells[id_] = {code[0]: known[code] for code in here}
                del found[id_]
        todo = list(found)
        with self._turn:
            new = [id_ for id_ in todo if (id_, *found[id_]) not in self._seen]
            self._seen |= {(id_, *found[id_]) for id_ in new}
        return new


def cells_of(patch_id: str, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> Cells:
    # A supporting target has no defect itself, so its verdict means nothing.
    targets = catalogue.builtin().get(patch_id).targets
    supporting = {target.path for target in targets if target.supports}
    return {
        row["target"]: {
            "body": row["body"],
            "without": row["verdict"],
            "with": after["verdict"],
            "detail": after["detail"] if after["verdict"] == "red" else row["detail"],
        }
        for row, after in rows
        if row["patch"] == patch_id and row["verdict"] != "n/a" and row["target"] not in supporting
    }


def check_not_lost(one: ReleaseSet, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Refuse rows in which red code of this set would no longer have a defect."""
    for row, _ in rows:
        patch = catalogue.builtin().get(row["patch"])
        known = (patch, one.name, row["target"], row["body"])
        if row["verdict"] == "n/a" and patch_evidence.was_red(*known):
            raise SystemExit(
                f"{one.name}: {patch.id}: {row['target']} was red and is n/a now ({row['detail']});"
                f" nothing was recorded. If its probe changed: make measure PATCH={patch.id}"
            )


def print_unmeasured(patches: list[str] | None, seconds: float) -> None:
    """Print on how many sets patches were not measured, because a range may span them.

    Args:
        seconds: what a set took.
    """
    sets = release_sets.load().values()
    for patch in catalogue.builtin():
        if patches and patch.id not in patches:
            continue
        distributions = {t.distribution for t in patch.targets if not t.supports}
        own = [one for one in sets if one.distribution in distributions]
        left = [one.name for one in own if not patch_evidence.is_measured(patch, one.name)]
        if left:
            print(
                f"{patch.id}: measured on {len(own) - len(left)} of {len(own)} release sets;"
                " its range may span the others. To measure these, in about"
                f" {len(left) * seconds / 60:.1f} minutes: make measure PATCH={patch.id} ALL=1"
            )


def run_probes(
    one: ReleaseSet, python: Path, patches: list[str]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The results of the probes without and with their patches, for each target."""
    without = child(one, python, patches)
    with_ = child(one, python, patches, "--patched", "--force")
    targets = {
        (id_, target.path)
        for id_ in patches
        for target in catalogue.builtin().get(id_).targets
        if target.distribution == one.distribution
    }
    for rows in (without, with_):
        if {(row["patch"], row["target"]) for row in rows} != targets:
            raise SystemExit(
                f"{one.name}: the probes did not all end; nothing was recorded, measure again"
            )
    for row in (*without, *with_):
        if row["verdict"] == NOT_RUN:
            raise SystemExit(
                f"{one.name}: {row['patch']}: {row['detail']}; nothing was recorded, measure again"
            )
    return list(zip(without, with_, strict=True))


def child(
    one: ReleaseSet, python: Path, patches: Iterable[str], *flags: str
) -> list[dict[str, Any]]:
    """Run the probes in the set's environment; returns one row for each target."""
    arguments = [argument for patch in patches for argument in ("--patch", patch)]
    command = ["-m", "mlx_patches.probes.child", *arguments]
    command += ["--distribution", one.distribution, *flags]
    try:
        return json.loads(release_sets.run(python, *command))  # type: ignore[no-any-return]
    except ValueError:
        raise SystemExit(
            f"{one.name}: the probes printed no rows; nothing was recorded, measure again"
        ) from None


if __name__ == "__main__":
    evidence_file.run(main)
