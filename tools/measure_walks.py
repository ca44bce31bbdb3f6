"""Keeps a release set's random walks as evidence, for the table of docs/findings.md.

    python tools/measure_walks.py --set 'mlx-lm 0.32.2' --rows FILE [--rows FILE ...] [--more]

The rows are those of ``mlx-patches lab --scenario walks --patched --every-patch --out FILE``, run
in an environment of the set. They replace their families' evidence; with ``--more``, for walks from
other seeds, their counts are added, and a red family stays red.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import evidence_file
import release_sets
from release_sets import ROOT

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.evidence.words import GREEN, RED
from mlx_patches.lab.runner import Row, check_ran, read_rows

EVIDENCE = ROOT / "tools" / "evidence" / "walks"
COUNTS = ("walks", "sequences")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", required=True, help="the release set")
    parser.add_argument("--rows", type=Path, action="append", required=True)
    parser.add_argument("--more", action="store_true", help="add to the walks that are kept")
    options = parser.parse_args()
    one = release_sets.find(options.set)
    if missing := [str(file) for file in options.rows if not file.exists()]:
        raise SystemExit(f"{missing[0]}: no such file")
    try:
        rows = [row for file in options.rows for row in read_rows(file)]
        check_ran(rows)
    except MlxPatchesError as error:
        raise SystemExit(str(error)) from None
    file = EVIDENCE / f"{one.slug}.json"
    before = evidence_file.read(file)
    found = build_evidence(one.name, rows, before, options.more)
    evidence_file.save(file, found, before)
    print(f"{file.relative_to(ROOT)}: {len(found['families'])} families")


def build_evidence(
    name: str, rows: Iterable[Row], before: Mapping[str, Any] | None = None, more: bool = False
) -> dict[str, Any]:
    """The evidence of one set: its families' verdicts, walks and sequences.

    Args:
        name: the set.
        rows: those of its walks.
        before: the kept evidence.
        more: add the counts to the kept ones.
    """
    before = before or {}
    families: dict[str, dict[str, Any]] = {**before.get("families", {})}
    environment = before.get("environment", "")
    for row in rows:
        if name not in row.environment.split(", ") or not row.patched:
            raise SystemExit(f"no walks with the patches on {name}: {row.environment}")
        environment = environment or row.environment
        if row.environment != environment:
            raise SystemExit(f"the walks that are kept are of {environment}, not {row.environment}")
        known = families.get(row.family, {}) if more else {}
        counts = re.match(r"(\d+) walks, (\d+) sequences", row.detail)
        if row.verdict == RED:
            families[row.family] = {"verdict": RED, "detail": row.detail}
        elif row.verdict == GREEN and counts and known.get("verdict") != RED:
            own = dict(zip(COUNTS, map(int, counts.groups()), strict=True))
            added = {what: own[what] + known.get(what, 0) for what in COUNTS}
            families[row.family] = {"verdict": GREEN, **added}
    return {"set": name, "environment": environment, "families": dict(sorted(families.items()))}


def table() -> list[str]:
    """A line of Markdown for each set: families, walks, sequences, and red families."""
    rows = []
    for found in evidence_file.load(EVIDENCE):
        own = found["families"]
        right = [one for one in own.values() if one["verdict"] == GREEN]
        red = [name.partition(":")[2] for name in own if own[name]["verdict"] == RED]
        counts = (sum(one[what] for one in right) for what in COUNTS)
        cells = ", ".join(f"`{name}`" for name in red) or "none"
        rows.append((found["set"], len(own), *counts, cells))
    return evidence_file.table(("release set", "families", "walks", "sequences", "red"), rows)


if __name__ == "__main__":
    evidence_file.run(main)
