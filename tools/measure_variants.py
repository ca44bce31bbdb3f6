"""Runs the lab on variants of the tiny configs; docs/findings.md has the result.

    python tools/measure_variants.py --set 'mlx-lm 0.31.3' [--variant yarn] [--jobs 2]
    python tools/measure_lab.py --write

Each cell has two letters, as in the lab's evidence: without the patches and with every patch that
the release admits. Families that cannot be built as a variant, or that it does not change, are
skipped. Needs uv.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import evidence_file
import lab_evidence
import release_sets
from findings import VARIED
from lab_evidence import Only
from measure_lab import Lab
from release_sets import ReleaseSet

from mlx_patches.lab.child import BUILD
from mlx_patches.lab.record import Cells, details, letters
from mlx_patches.lab.variants import VARIANTS

# The scenarios that depend on positions, masks and windows.
SCENARIOS = ("left-padded", "chunked-batch", "merge", "extend", "engine")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", required=True, help="this set")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="only this variant")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    for one in map(lab_evidence.find, options.sets):
        measure(one, options.variant or VARIANTS, options.jobs)


def measure(one: ReleaseSet, variants: Iterable[str], jobs: int) -> None:
    """Measure variants of every family of a set, and add them to its evidence."""
    file = VARIED / f"{one.slug}.json"
    evidence: dict[str, Any] = {"set": one.name, "variants": {}}
    if file.exists():
        evidence = evidence_file.read(file)
    with release_sets.environment(one) as python:
        evidence["versions"] = release_sets.versions(python)
        for variant in variants:
            evidence["variants"][variant] = measure_variant(one, python, variant, jobs)
            evidence_file.save(file, evidence)
            count = len(evidence["variants"][variant]["without"])
            print(one.name, variant, f"{count} families", flush=True)


def measure_variant(one: ReleaseSet, python: Path, variant: str, jobs: int) -> dict[str, Cells]:
    """One variant's cells in the families that can be built, without and with every patch."""
    without = Lab(one, python, jobs, Only(SCENARIOS)).cells("without", variant)
    built = [row for row in without if row["scenario"] != BUILD]
    names = tuple(letters(built))
    only = Only(SCENARIOS, names)
    with_ = Lab(one, python, jobs, only).cells("with", variant) if names else []
    return {
        "without": letters(built),
        "with": letters(with_),
        "details": details([*with_, *without]),
    }


if __name__ == "__main__":
    evidence_file.run(main)
