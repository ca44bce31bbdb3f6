"""Runs the lab on release sets and writes its evidence, one compact file for each set.

    python tools/measure_lab.py --set 'mlx-lm 0.32.2'     (again: --again)
    python tools/measure_lab.py --shard 1/8
    python tools/measure_lab.py --distinct                families with new code; others as seen
    python tools/measure_lab.py --part with --again       after a patch has changed
    python tools/measure_lab.py --scenario trim --again   after a scenario has changed
    python tools/measure_lab.py --part needs --again      only which patches each cell needs
    python tools/measure_lab.py --check-entries           whether each model's entry is enough
    python tools/measure_lab.py --check-entries --again   and which patches an entry lacks
    python tools/measure_lab.py --dtype bfloat16          another dtype, in a file of its own
    python tools/measure_lab.py --device metal-emulated   the branch that Metal takes, on a CPU
    python tools/measure_lab.py --take FILE               add a file of `mlx-patches lab --evidence`
    python tools/measure_lab.py --write                   only write the generated files

A cell is a letter: g green, r red, n not applicable, i insensitive, x not built. Each cell is
measured without patches and with every patch that the release admits. For a cell that the patches
turn green, the evidence names the patches that it needs, except with --no-needs. For a right cell
that only a model's entry turns red, it names the entry's companions: the patches that keep it
right. Needs uv.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import evidence_file
import findings
import lab_evidence
import release_sets
import shards
from lab_evidence import (
    ALL,
    PLAIN,
    Only,
    Place,
    evidence_of,
    family_results,
    has_models,
    save,
    update_cells,
)
from release_sets import ROOT, ReleaseSet

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.evidence import code, store
from mlx_patches.evidence.store import cell_pairs
from mlx_patches.evidence.words import CPU, DEVICES, DTYPES, FLOAT32
from mlx_patches.lab import runner
from mlx_patches.lab.record import PARTS, details, letters

SECONDS = 3600
EVERY_PATCH = ["--patched", "--every-patch"]
# Prints each family of a distribution, and the set that has its installed code, or nothing.
WHERE = """
import json, sys
from mlx_patches.auditing.installed_code import match_family
from mlx_patches.core import distributions
from mlx_patches.lab.families import families
here = distributions.find(sys.argv[1])
print(json.dumps({one.name: match_family(here, one.name).set for one in families(here.name)}))
"""
# Family to cell to the patches that the cell needs.
Needs = dict[str, dict[str, list[str]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", help="only this set")
    shards.add_option(parser, "set")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--part", choices=("without", "with", "needs"), help="only this part")
    parser.add_argument("--scenario", action="append", default=[], help="only this scenario")
    parser.add_argument("--model", action="append", default=[], help="only this family")
    parser.add_argument("--again", action="store_true", help="also measure what has evidence")
    parser.add_argument("--distinct", action="store_true", help="of a new set, only new code")
    parser.add_argument("--no-needs", action="store_true", help="trace no cell's needed patches")
    parser.add_argument("--likely", action="append", default=[], help="try this patch first")
    parser.add_argument("--take", type=Path, help="add evidence from another machine")
    parser.add_argument("--write", action="store_true", help="measure nothing, only write")
    entries = "measure with what apply() gives each model; --again: trace what an entry lacks"
    parser.add_argument("--check-entries", action="store_true", help=entries)
    parser.add_argument("--dtype", choices=DTYPES, default=FLOAT32, help="dtype of the weights")
    parser.add_argument("--device", choices=DEVICES, default=CPU, help="what MLX computes on here")
    options = parser.parse_args()
    if options.take:
        print(lab_evidence.take(options.take, options.again))
        findings.write(lab_evidence.load())
        return
    place = Place(options.device, options.dtype)
    parts = {None: ("without", "with"), "needs": ()}.get(options.part, (options.part,))
    only = Only(tuple(options.scenario), tuple(options.model))
    sets = options.shard.of([one for one in release_sets.load().values() if has_models(one)])
    if options.sets:
        sets = list(map(lab_evidence.find, options.sets))
    known = {family for one in sets for family in evidence_of(one).get("without", ())}
    if unknown := sorted({*options.model} - known):
        raise SystemExit(f"no family {unknown[0]!r} in the evidence of these release sets")
    if options.check_entries:
        if not sets:
            raise SystemExit("no release set of this name: see tools/release_sets.toml")
        lacking = [line for one in sets for line in lacks(one, options.jobs, options.again, only)]
        print("\n".join(lacking) or "every model's entry is enough")
        sys.exit(bool(lacking))
    for one in () if options.write else sets:
        likely = None if options.no_needs else options.likely
        chosen, again = only, options.again
        if options.distinct and one.name not in code.sets_of(one.distribution):
            chosen, again = replace(only, families=take_known(one)), True
            if not chosen.families:
                continue
        try:
            measure(one, parts, options.jobs, again, chosen, likely, place)
        except MlxPatchesError as error:
            raise SystemExit(f"{one.name}: {error}") from None
    mark_code()
    findings.write(lab_evidence.load())


def measure(
    one: ReleaseSet,
    parts: Sequence[str],
    jobs: int,
    again: bool,
    only: Only = ALL,
    likely: Collection[str] | None = (),
    place: Place = PLAIN,
) -> None:
    """Measure the parts that a set's evidence lacks, or some of their cells, and add them.

    With ``likely``, also which patches each repaired cell needs; these patches are tried first.
    """
    before = evidence_of(one, place)
    evidence = {"set": one.name, **place.facts, **before}
    todo = [part for part in parts if again or part not in evidence]
    wanted = bool(todo) or (not parts and (again or "needs" not in evidence))
    if place.is_emulated and not only.families:  # the others run the same code as on a CPU
        only = replace(only, families=tuple(store.metal_branches(one.name) or ()))
    if only.families:
        known = evidence.get("without") or evidence_of(one).get("without", {})
        only = replace(only, families=tuple(f for f in only.families if f in known))
        wanted = wanted and bool(only.families)
    if not wanted:
        return
    with release_sets.environment(one) as python:
        lab = Lab(one, python, jobs, only, place)
        versions = release_sets.versions(python)
        if any(part in before and (part not in todo or only != ALL) for part in PARTS):
            release_sets.check_versions(one, before["versions"], versions)
        evidence["versions"] = versions
        if todo and not place.is_emulated:
            check_devices({runner.device(str(python))}, place.device)
        for part in todo:
            rows = lab.cells(part)
            for name, found in ((part, letters(rows)), (f"details_{part}", details(rows))):
                evidence[name] = update_cells(evidence.get(name, {}), found, only)
        if "with" in evidence and likely is not None:
            # If the plain CPU runs the cell, its evidence has the patches that the cell needs.
            needs_of = evidence_of(one).get("needs", {}) if place.is_emulated else {}
            repaired = {
                family: [
                    name
                    for name, pair in pairs.items()
                    if pair in ("rg", "rn")
                    and only.has(family, name)
                    and name not in needs_of.get(family, {})
                ]
                for family, pairs in cell_pairs(evidence).items()
            }
            traced = update_cells(evidence.get("needs", {}), lab.trace(repaired, likely), only)
            evidence["needs"] = dict(sorted(traced.items()))
    save(one, evidence, place, before)
    results = list(family_results(evidence).values())
    print(one.name, {name: results.count(name) for name in sorted(set(results))}, flush=True)


def take_known(one: ReleaseSet) -> tuple[str, ...]:
    """Give a new set the evidence of the families whose code was measured in other sets.

    Returns:
        The families with other code, which are to be measured.
    """
    with release_sets.environment(one) as python:
        found = json.loads(release_sets.run(python, "-c", WHERE, one.distribution))
        evidence: dict[str, Any] = {"set": one.name, "versions": release_sets.versions(python)}
    new = tuple(family for family, name in found.items() if not name)
    evidence["without"] = {family: {} for family in new}
    evidence["same_code"] = {family: name for family, name in found.items() if name}
    for family, name in evidence["same_code"].items():
        other = evidence_file.read(lab_evidence.EVIDENCE / f"{name.replace(' ', '-')}.json")
        for part, cells in other.items():
            if isinstance(cells, dict) and family in cells and part != "same_code":
                evidence.setdefault(part, {})[family] = cells[family]
    save(one, evidence)
    print(f"{one.name}: {len(new)} of {len(found)} families have new code", flush=True)
    return new


def mark_code() -> None:
    measured = {one["set"] for one in lab_evidence.load()}
    for one in release_sets.load().values():
        if one.name in measured - {*code.sets_of(one.distribution)}:
            with release_sets.environment(one) as python:
                release_sets.run(python, str(ROOT / "tools" / "mark_code.py"))


def check_devices(found: set[str], wanted: str) -> None:
    """Check that MLX computed on the device that evidence is written for."""
    if other := found - {wanted, ""}:
        raise SystemExit(f"MLX computes on {', '.join(other)} here, not on {wanted}: see --device")


def lacks(one: ReleaseSet, jobs: int, again: bool, only: Only) -> list[str]:
    """A line for each cell that is green with every patch, and not with the model's entry.

    With ``again``, the set's evidence gets the patches that such a cell needs: as its needs if it
    is red without patches, else as the entry's companions.
    """
    evidence = evidence_of(one)
    if "with" not in evidence:
        raise SystemExit(f"{one.name}: no evidence with every patch; run --part with first")
    with release_sets.environment(one) as python:
        lab = Lab(one, python, jobs, only)
        found = letters(lab.cells("entry"))
        lacking = {
            family: [
                name
                for name, cell in named.items()
                if cell == "g" and only.has(family, name) and found.get(family, {}).get(name) != "g"
            ]
            for family, named in evidence["with"].items()
        }
        if again:
            for family, named in lab.trace(lacking, flags=["--beside-entry"]).items():
                for name, ids in named.items():
                    part = "companions" if evidence["without"][family][name] == "g" else "needs"
                    evidence.setdefault(part, {}).setdefault(family, {})[name] = ids
            save(one, evidence)
    return [
        f"{one.name}: {family} is {found.get(family, {}).get(name, 'missing')} in {name}"
        for family, names in lacking.items()
        for name in names
    ]


class Lab(NamedTuple):
    """The lab in a release set's environment."""

    one: ReleaseSet
    python: Path
    jobs: int
    only: Only = ALL
    place: Place = PLAIN

    def cells(self, part: str, variant: str = "") -> list[dict[str, Any]]:
        """Run the lab; returns the rows of the set's own families.

        The part is ``without`` patches, ``with`` every patch, or with the model's ``entry``.
        """
        flags = {"without": ["--unpatched"], "entry": ["--patched"]}.get(part, EVERY_PATCH)
        command = [*flags, "--dtype", self.place.dtype]
        command += ["--variant", variant] if variant else []
        command += ["--device", self.place.device] if self.place.is_emulated else []
        command += [*self.only.flags(self.one.distribution), "--jobs", str(self.jobs)]
        rows = lab_evidence.run_lab(self.python, *command, seconds=SECONDS)
        check_devices({row["device"] for row in rows}, self.place.device)
        own = [row for row in rows if row["family"].startswith(f"{self.one.distribution}:")]
        return sorted(own, key=lambda row: str(row["family"]))

    def trace(
        self, wanted: dict[str, list[str]], likely: Collection[str] = (), flags: Sequence[str] = ()
    ) -> Needs:
        """Family to wanted cell to the patches that it needs.

        The ``likely`` patches, and those that the same cells need in other sets, are tried first.
        ``flags`` are further arguments of ``attribute.py``.
        """
        distribution = self.one.distribution
        elsewhere = [
            other.get("needs", {})
            for other in lab_evidence.load()
            if other["set"].split()[0] == distribution
        ]

        def attribute_family(family: str) -> dict[str, list[str]]:
            command = [str(Path(__file__).with_name("attribute.py")), f"{distribution}:{family}"]
            command += ["--dtype", self.place.dtype, *flags]
            command += ["--device", self.place.device] if self.place.is_emulated else []
            there = set(likely)
            for name in wanted[family]:
                command += ["--scenario", name]
                there.update(*(cells.get(family, {}).get(name, ()) for cells in elsewhere))
            for patch in sorted(there):
                command += ["--likely", patch]
            found: dict[str, list[str]] = json.loads(release_sets.run(self.python, *command))
            return found

        families = [family for family, names in wanted.items() if names]
        with ThreadPoolExecutor(self.jobs) as pool:
            return dict(zip(families, pool.map(attribute_family, families), strict=True))


if __name__ == "__main__":
    evidence_file.run(main)
