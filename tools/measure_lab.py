"""Runs the lab on release sets and keeps what it saw, one compact file a set.

    python tools/measure_lab.py --set 'mlx-lm 0.32.2'     (again: --again)
    python tools/measure_lab.py --shard 1/8
    python tools/measure_lab.py --write                   only docs/findings.md

A cell is two letters, without the patches and with them: g green, r red, n not applicable,
i insensitive, x not built. Needs uv.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import measure_matrix
import release_sets
from packaging.version import Version
from release_sets import ReleaseSet

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from mlx_patches import _recommend  # noqa: E402

EVIDENCE = ROOT / "tools" / "evidence" / "lab"
FINDINGS = ROOT / "docs" / "findings.md"
SECONDS = 3600
LETTERS = {"green": "g", "red": "r", "n/a": "n", "insensitive": "i", "not-built": "x"}
SHORTEST = 3  # families named in a line of the findings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", help="only this set")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth set, from the Ith")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    parser.add_argument("--write", action="store_true", help="measure nothing")
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    for one in list(release_sets.load().values())[index - 1 :: count]:
        wanted = not options.sets or one.name in options.sets
        if not options.write and wanted and (options.again or not file_of(one).exists()):
            measure(one, options.jobs)
    write(load())


def write(evidence: list[dict[str, Any]]) -> None:
    """The page of findings, and the summary that the package carries."""
    FINDINGS.write_text(findings(evidence))
    _recommend.SUMMARY.write_text(json.dumps(summary(evidence), indent=1) + "\n")


def summary(evidence: list[dict[str, Any]]) -> dict[str, Any]:
    """Each set's versions, and each family's fate in it."""
    return {
        "sets": {
            one["set"]: {
                "versions": one["versions"],
                "families": {name: fate(cells) for name, cells in one["families"].items()},
            }
            for one in evidence
        }
    }


def file_of(one: ReleaseSet) -> Path:
    return EVIDENCE / f"{one.slug}.json"


def measure(one: ReleaseSet, jobs: int) -> None:
    """Run the lab without and with the patches, and write the set's file."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cells.jsonl"
        command = ["lab", "--both", "--jobs", str(jobs), "--out", str(out)]
        measure_matrix.run(one, "-m", "mlx_patches", *command, seconds=SECONDS, codes=(0, 1))
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    own = [row for row in rows if row["family"].startswith(f"{one.distribution}:")]
    evidence = {"set": one.name, "versions": measure_matrix.versions(one), **compact(own)}
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    file_of(one).write_text(json.dumps(evidence, indent=1) + "\n")
    fates = [fate(cells) for cells in evidence["families"].values()]
    print(one.name, {name: fates.count(name) for name in sorted(set(fates))}, flush=True)


def compact(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells as pairs of letters, and the detail of each red or unbuilt one."""
    families: dict[str, dict[str, str]] = defaultdict(dict)
    details: dict[str, dict[str, str]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: (row["family"], row["patched"])):
        name = row["family"].partition(":")[2]
        letter = LETTERS[row["verdict"]]
        if row["patched"]:
            families[name][row["scenario"]] = families[name].get(row["scenario"], "n") + letter
        else:
            families[name][row["scenario"]] = letter
            if letter in "rx":
                details[name][row["scenario"]] = row["detail"]
    return {"families": dict(families), "details": dict(details)}


def fate(cells: dict[str, str]) -> str:
    """A family's fate: green, repaired, red, insensitive or not-built."""
    pairs = cells.values()
    if any(pair[0] == "x" for pair in pairs):
        return "not-built"
    if any(pair[1:] == "r" for pair in pairs):
        return "red"
    if any(pair[0] == "r" for pair in pairs):
        return "repaired"
    return "insensitive" if any(pair[0] == "i" for pair in pairs) else "green"


def load() -> list[dict[str, Any]]:
    """All lab evidence, releases oldest first."""
    found = [json.loads(file.read_text()) for file in EVIDENCE.glob("*.json")]
    return sorted(found, key=lambda e: (e["set"].split()[0], Version(e["set"].split()[1])))


def findings(evidence: list[dict[str, Any]]) -> str:
    """The page: how each set fared, and the red cells of the newest by what they say."""
    names = ("green", "repaired", "red", "insensitive", "not-built")
    lines = [
        "# What the lab found",
        "",
        "Generated by `python tools/measure_lab.py --write` from `tools/evidence/lab/`. A family",
        "is red where any scenario of it is; `repaired` means red without the patches, green with",
        "them. Tiny random-weight models, float32, on a CPU.",
        "",
        "| release set | " + " | ".join(names) + " |",
        "|---|" + "---|" * len(names),
    ]
    for one in evidence:
        fates = [fate(cells) for cells in one["families"].values()]
        lines.append(f"| {one['set']} | " + " | ".join(str(fates.count(n)) for n in names) + " |")
    for distribution in ("mlx-lm", "mlx-vlm"):
        newest = [one for one in evidence if one["set"].startswith(f"{distribution} ")][-1:]
        for one in newest:
            lines += ["", f"## Red with the patches in {one['set']}", "", *defects(one)]
    return "\n".join(lines) + "\n"


def defects(one: dict[str, Any]) -> list[str]:
    """The red cells of a set, by what went wrong, most families first."""
    groups: dict[str, set[str]] = defaultdict(set)
    for family, cells in one["families"].items():
        for scenario, pair in cells.items():
            if pair == "rr":
                said = one["details"][family][scenario]
                groups[f"{scenario}: {kind(said)}"].add(family)
    lines = ["| scenario and what it says | families |", "|---|---|"]
    for said, families in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        shown = ", ".join(f"`{name}`" for name in sorted(families)[:SHORTEST])
        more = f" and {len(families) - SHORTEST} more" if len(families) > SHORTEST else ""
        lines.append(f"| {said} | {len(families)}: {shown}{more} |")
    model = next((name for name, cells in one["families"].items() if "rr" in cells.values()), "")
    return [*lines, "", f"Reproduce a row: `mlx-patches lab --model {model} --both`."]


def kind(detail: str) -> str:
    """A detail without its numbers, so that families with one defect fall together."""
    text = re.sub(r"^row \d+, token \d+: ", "", detail)
    if "differs" in text or "difference" in text:
        return "other logits than alone"
    return text.replace("|", "\\|")


if __name__ == "__main__":
    main()
