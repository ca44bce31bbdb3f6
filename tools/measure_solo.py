"""Measures the lab's scenarios of single requests in a release set, and keeps them as evidence.

    python tools/measure_solo.py --set 'mlx-lm 0.32.2' --python PYTHON  [--scenario NAME ...]

``PYTHON`` belongs to an environment of the set. Other scenarios keep their evidence. ``--table``
prints the results of all files.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence_file
import measure_reference
import release_sets
from release_sets import ROOT

from mlx_patches.evidence.outside import FEATURES, IMAGES_WHY, PREFILL
from mlx_patches.evidence.words import GREEN, LETTERS, NOT_BUILT, RED, current_id
from mlx_patches.lab import RELEASE
from mlx_patches.lab.record import check_ended

EVIDENCE = ROOT / "tools" / "evidence" / "solo"
PARTS = ("without", "with")
FIELDS = "config-fields"
# By scenario, and family or case: why no patch repairs it. FEATURES stands for all scenarios of
# images, whose reasons the audit also prints; the page explains config-fields.
WHY = {
    ("draws", "server"): "the server ignores `seed`",
    **{(FEATURES, family): why for family, why in IMAGES_WHY.items()},
}

Rows = list[dict[str, Any]]


def main() -> None:
    from mlx_patches.lab.named_scenarios import NAMED
    from mlx_patches.lab.release_scenarios import RELEASE_SCENARIOS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", help="the release set")
    parser.add_argument("--python", type=Path, help="an environment of this set")
    parser.add_argument(
        "--scenario", action="append", type=current_id, choices=(*NAMED, *RELEASE_SCENARIOS)
    )
    parser.add_argument("--rows", type=Path, help="rows of `lab --out` from another machine")
    parser.add_argument("--family", action="append", default=[], help="only this one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print the results of all files")
    options = parser.parse_args()
    if not options.table and not (options.set and options.python):
        parser.error("--set and --python are required, or --table")
    if options.table:
        print("\n".join(table()))
    else:
        names = options.scenario or [*NAMED, *RELEASE_SCENARIOS]
        measured = evidence_file.read_lines(options.rows) if options.rows else []
        measure(options.set, options.python, names, options.family, options.jobs, measured)


def measure(
    name: str,
    python: Path,
    scenarios: Sequence[str],
    only: Sequence[str],
    jobs: int = 1,
    measured: Sequence[dict[str, Any]] = (),
) -> None:
    """Run the scenarios without and with the patches, and write the set's file.

    Args:
        measured: rows that count instead.
    """
    one = release_sets.find(name)
    file = EVIDENCE / f"{one.slug}.json"
    before = evidence_file.read(file)
    found = {"set": name, **evidence_file.read(file), "versions": release_sets.versions(python)}

    def rows(part: str, scenarios: Sequence[str], only: Sequence[str], off: str = "") -> Rows:
        models = [f"{one.distribution}:{family}" for family in only] or [one.distribution]
        mode = "--unpatched" if part == PARTS[0] else "--patched"
        kind = "--every-patch"
        found = measure_reference.run(python, models, jobs, mode, off, scenarios, kind)
        return complete(found, scenarios)

    for part in PARTS:
        own = [row for row in measured if row["patched"] == (part == PARTS[1])]
        own = complete(own, scenarios) if measured else rows(part, scenarios, only)
        add(found, part, scenarios, own)
    if PREFILL in scenarios:
        found["needs"] = needs(found, one.distribution, rows)
    evidence_file.save(file, found, before)
    print(f"{file.relative_to(ROOT)}: {', '.join(scenarios)}")


def complete(rows: Sequence[dict[str, Any]], scenarios: Sequence[str]) -> Rows:
    """The rows with the families' own names; a crash counts for every scenario without a row."""
    from mlx_patches.lab.release_scenarios import RELEASE_SCENARIOS

    found: Rows = []
    for row in rows:
        family = row["family"].partition(":")[2]
        family, names = "" if family == RELEASE else family, [row["scenario"]]
        if ended := re.match(r"crashed: (signal \d+)", row["detail"]):
            own = {one["scenario"] for one in rows if one["family"] == row["family"]}
            names = [one for one in scenarios if (one in RELEASE_SCENARIOS) != bool(family)]
            names = [name for name in names if name not in own]
            row["detail"] = f"ended by {ended[1]}"
        found += [{**row, "family": family, "scenario": name} for name in names]
    check_ended(found)
    return found


def needs(
    found: Mapping[str, Any], distribution: str, rows: Callable[..., Rows]
) -> dict[str, dict[str, list[str]]]:
    """Family to the patches without which its decode differs from its prefill."""
    before, after = (found[part][PREFILL] for part in PARTS)
    repaired = [name for name in before if before[name] + after.get(name, "") == "rg"]

    def run(own: Sequence[str], off: str) -> dict[str, Any]:
        return {PREFILL: {row["family"]: row for row in rows(PARTS[1], [PREFILL], own, off)}}

    return measure_reference.trace(
        {PREFILL: dict.fromkeys(repaired)},
        lambda patch: [
            name for name in repaired if measure_reference.concerns(patch, distribution, name)
        ],
        run,
    )


def add(
    found: dict[str, Any], part: str, scenarios: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Put rows in a set's evidence: their letters, and the details of red ones."""
    cells, details = found.setdefault(part, {}), found.setdefault(f"details_{part}", {})
    for scenario in scenarios:
        own = [row for row in rows if row["scenario"].partition(":")[0] == scenario]
        own = [row for row in own if row["verdict"] != NOT_BUILT]
        keeps_details = scenario == FIELDS
        known, texts = cells.setdefault(scenario, {}), details.setdefault(scenario, {})
        for row in own:
            name = row["scenario"].partition(":")[2] or row["family"]
            known[name] = LETTERS[row["verdict"]]
            texts.pop(name, None)
            if row["verdict"] == RED or keeps_details:
                texts[name] = row["detail"]


def table() -> list[str]:
    """A line of Markdown for each set: how many families or cases are right, repaired, wrong."""
    from mlx_patches.lab.named_scenarios import NAMED
    from mlx_patches.lab.release_scenarios import RELEASE_SCENARIOS

    names = [*NAMED, *RELEASE_SCENARIOS]
    sets = evidence_file.load(EVIDENCE)
    rows = [(found["set"], *(count_results(found, one) for one in names)) for found in sets]
    return evidence_file.table(("release set", *names), rows)


def reasons() -> list[str]:
    """A table of Markdown of the families and cases that stay wrong: why no patch mends them."""
    sets: dict[tuple[str, str], set[str]] = {}
    for found in evidence_file.load(EVIDENCE):
        for scenario, cells in found[PARTS[1]].items():
            kind = FEATURES if scenario.startswith(FEATURES) else scenario
            for name in (name for name, letter in cells.items() if letter == LETTERS[RED]):
                if scenario != FIELDS and name:  # a release's own cell sums up its cases
                    sets.setdefault((kind, name), set()).add(found["set"])
    if unlike := sorted(sets.keys() ^ WHY.keys()):
        place = ", ".join(unlike[0])
        raise SystemExit(f"{EVIDENCE}: {place}: WHY of {Path(__file__).name} differs")
    rows = []
    for (kind, name), own in sorted(sets.items()):
        package, *_ = next(iter(own)).split()
        releases = "/".join(sorted(one.split()[1] for one in own))
        rows.append((kind, name, f"{package} {releases}", WHY[kind, name]))
    return evidence_file.table(("scenario", "family or case", "sets", "why"), rows)


def count_results(found: Mapping[str, Any], scenario: str) -> str:
    """How many families or cases of a scenario are right, repaired and wrong, or n/a, or ``-``."""
    if scenario not in found.get(PARTS[1], {}):
        return "-"  # not measured
    before, after = (found.get(part, {}).get(scenario, {}) for part in PARTS)
    green, red = LETTERS[GREEN], LETTERS[RED]
    own = [(before[name], after.get(name)) for name in before if name]
    counts = (
        sum(one == green and other == green for one, other in own),
        sum(one == red and other == green for one, other in own),
        sum(other == red for _, other in own),
    )
    return "/".join(map(str, counts)) if any(counts) else "n/a"


if __name__ == "__main__":
    evidence_file.run(main)
