"""Measures the lab's scenarios of one request alone in a release set, and keeps them as evidence.

    python tools/measure_solo.py --set 'mlx-lm 0.32.2' --python PYTHON  [--scenario NAME ...]

``PYTHON`` is that of an environment of the set. Each job runs its families in one process that
forks for each of them: to start a process for each would take hours. Scenarios that are not named
keep what the file has of them. ``--table`` prints the results of all files.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import evidence_file
import release_sets
import shards
from release_sets import ROOT
from shards import Shard

from mlx_patches.activation import settings
from mlx_patches.evidence.outside import FEATURES, IMAGES_WHY, PREFILL
from mlx_patches.evidence.words import GREEN, LETTERS, NOT_BUILT, RED, current_id
from mlx_patches.lab.record import check_ended
from mlx_patches.lab.runner import judge_end

EVIDENCE = ROOT / "tools" / "evidence" / "solo"
# Seconds for one family, and for one scenario of the release.
SECONDS, RELEASE_SECONDS = 120, 300
PARTS = ("without", "with")
FIELDS = "config-fields"
# By scenario, and family or case: why no patch mends what stays wrong. FEATURES stands for all
# scenarios of images, whose reasons the audit tells too; the page says of config-fields what it
# means.
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
    parser.add_argument("--python", help="an environment of this set")
    parser.add_argument(
        "--scenario", action="append", type=current_id, choices=(*NAMED, *RELEASE_SCENARIOS)
    )
    parser.add_argument("--family", action="append", default=[], help="only this one")
    parser.add_argument("--jobs", type=int, default=1)
    shards.add_option(parser, "family")
    parser.add_argument("--table", action="store_true", help="print the results of all files")
    parser.add_argument("--rows", choices=PARTS, help="print rows: run by this tool itself")
    options = parser.parse_args()
    names = options.scenario or [*NAMED, *RELEASE_SCENARIOS]
    if options.table:
        print("\n".join(table()))
    elif options.rows:
        distribution, patched = options.set.split()[0], options.rows == PARTS[1]
        print_rows(distribution, names, patched, options.family, options.shard)
    else:
        measure(options.set, options.python, names, options.family, options.jobs)


def measure(
    name: str, python: str, scenarios: Sequence[str], only: Sequence[str], jobs: int = 1
) -> None:
    """Run the scenarios without and with the patches, and write the set's file."""
    slug = release_sets.find(name).slug
    file = EVIDENCE / f"{slug}.json"
    before = evidence_file.read(file)
    found = {"set": name, **evidence_file.read(file)}
    found["versions"] = release_sets.versions(Path(python))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def rows(part: str, scenarios: Sequence[str], only: Sequence[str], off: str = "") -> Rows:
        command = [python, __file__, "--set", name, "--rows", part]
        command += [word for one in scenarios for word in ("--scenario", one)]
        command += [word for one in only for word in ("--family", one)]
        variables = environment | {settings.DISABLE: off}

        def of_shard(index: int) -> Rows:
            own = [*command, "--shard", f"{index}/{jobs}"]
            done = subprocess.run(own, stdout=subprocess.PIPE, env=variables, check=True)
            rows = list(map(json.loads, done.stdout.splitlines()))
            check_ended(rows)
            return rows

        with ThreadPoolExecutor(jobs) as pool:
            return [row for found in pool.map(of_shard, range(1, jobs + 1)) for row in found]

    for part in PARTS:
        add(found, part, scenarios, rows(part, scenarios, only))
    if PREFILL in scenarios:
        found["needs"] = needs(found, name.split()[0], rows)
    evidence_file.save(file, found, before)
    print(f"{file.relative_to(ROOT)}: {', '.join(scenarios)}")


def needs(
    found: Mapping[str, Any], distribution: str, rows: Callable[..., Rows]
) -> dict[str, dict[str, list[str]]]:
    """Family to the patches without which its decode differs from its prefill."""
    from measure_reference import concerns, trace

    before, after = (found[part][PREFILL] for part in PARTS)
    repaired = [name for name in before if before[name] + after.get(name, "") == "rg"]

    def run(own: Sequence[str], off: str) -> dict[str, Any]:
        return {PREFILL: {row["family"]: row for row in rows(PARTS[1], [PREFILL], own, off)}}

    return trace(
        {PREFILL: dict.fromkeys(repaired)},
        lambda patch: [name for name in repaired if concerns(patch, distribution, name)],
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
        told = scenario == FIELDS
        known, said = cells.setdefault(scenario, {}), details.setdefault(scenario, {})
        for row in own:
            name = row["scenario"].partition(":")[2] or row["family"]
            known[name] = LETTERS[row["verdict"]]
            said.pop(name, None)
            if row["verdict"] == RED or told:
                said[name] = row["detail"]


def print_rows(
    distribution: str, scenarios: Sequence[str], patched: bool, only: Sequence[str], shard: Shard
) -> None:
    """Print a row for each cell of a shard's families; each runs in a fork of this process."""
    import importlib

    from mlx_patches.core.packages import package_of
    from mlx_patches.lab import RELEASE, Family
    from mlx_patches.lab.child import apply
    from mlx_patches.lab.families import families
    from mlx_patches.lab.named_scenarios import NAMED

    if patched:
        apply(every=True)
    importlib.import_module(f"{package_of(distribution)}.generate")
    flags = ["--patched", "--every-patch"] if patched else []
    own = [name for name in scenarios if name in NAMED]
    found = shard.of(families(distribution)) if own else []
    for family in (one for one in found if not only or one.name in only):
        fork_family(family.name, str(family), own, flags, SECONDS)
    # These have processes of their own, so that one does not change what another one sees.
    of_release = [name for name in scenarios if name not in NAMED]
    for name in shard.of(of_release):
        fork_family("", str(Family(distribution, RELEASE)), [name], flags, RELEASE_SECONDS)


def fork_family(
    name: str, family: str, scenarios: Sequence[str], flags: list[str], limit: int
) -> None:
    """Run a family's scenarios in a fork of this process, as the lab's process would."""
    from mlx_patches.lab import child

    arguments = [family, *flags, *(word for one in scenarios for word in ("--scenario", one))]
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(write, 1)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        signal.alarm(limit)
        try:
            child.main(arguments)
            sys.stdout.flush()
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with open(read) as file:
        rows = [json.loads(line) for line in file if line.endswith("\n")]
    _, status = os.waitpid(pid, 0)
    said = {row["scenario"] for row in rows}
    missing = [] if "build" in said else [one for one in scenarios if one not in said]
    end = f"ended by signal {status & 127}" if status & 127 else "ended early"
    verdict = judge_end(-(status & 127) or status >> 8)
    rows += [{"scenario": one, "verdict": verdict, "detail": end} for one in missing]
    for row in rows:
        print(json.dumps({**row, "family": name}), flush=True)


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
    main()
