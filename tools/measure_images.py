"""Compares every family with images with transformers in a release set, and writes the evidence.

    python tools/measure_images.py --set 'mlx-vlm 0.7.10' --python PYTHON
    ... --rows FILE   from the rows of `lab --reference --both --out FILE` on another machine
    ... --add         families without rows keep their evidence
    ... --table       prints the results of all files: family by stage, for each release

``PYTHON`` belongs to an environment of the set with the extra ``reference``, and with the rows'
transformers. The results of transformers are kept in the folder ``MLX_PATCHES_LAB_IMAGES``, if set.
A cell that the patches turn green is measured again without each patch that may repair it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import evidence_file
import measure_reference
import release_sets
from measure_reference import Cells, Rows
from release_sets import ROOT

from mlx_patches.core.patch import Patch
from mlx_patches.evidence.words import GREEN, LETTERS, RED
from mlx_patches.lab.images import published
from mlx_patches.lab.images.scenario import NAME
from mlx_patches.lab.record import PARTS, check_ended
from mlx_patches.lab.runner import CRASHED

EVIDENCE = ROOT / "tools" / "evidence" / "images"
# The modules, besides a family's own, that process images.
GENERAL = ("utils", "prompt_utils", "generate", "vision_cache", "models.base", "models.interpolate")
SHOWN = 200
# The names of cells, in order.
STAGES = (
    *("load", "ids", "pixels", "grids", "model", "request"),
    *("video", "fields", "chat", "chunks", "generate", "stream", "batch", "server"),
    *("audio", "saved"),
)
# A cell's detail if code raised: the exception's name and message.
RAISED = re.compile(r"\b[A-Z]\w*(Error|Exception|Exit): |^the release crashed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", help="the release set")
    parser.add_argument("--python", type=Path, help="an environment of this set, with the extra")
    parser.add_argument("--rows", type=Path, help="rows that were measured elsewhere")
    parser.add_argument("--add", action="store_true", help="keep the families without rows")
    parser.add_argument("--no-needs", action="store_true", help="keep the traced patches of before")
    parser.add_argument("--needs", type=Path, help="the patches of cells, traced elsewhere")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the results of all files")
    options = parser.parse_args()
    if options.table:
        print("\n".join(table()))
        return
    one = release_sets.find(options.set)
    if options.rows:
        rows = evidence_file.read_lines(options.rows)
    else:
        rows = run(options.python, [one.distribution], options.jobs, "--both")
    rows = settle_crashes(rows)
    check_ended(rows)
    rows = settle_loads(rows)
    check_transformers(options.python, rows)
    found = make_evidence(one, options.python, rows)
    file = choose_file(one, found["outside"])
    before = evidence_file.read(file)
    if options.add:
        keep(before, found, {row["family"].partition(":")[2] for row in rows})
    explain_absent(found, list_types(options.python))
    if options.needs or options.no_needs:
        traced = read_needs(options.needs) if options.needs else {}
        found["needs"] = only_repaired({**before.get("needs", {}), **traced}, found)
    else:
        found["needs"] = needs(options.python, found, options.jobs)
    evidence_file.save(file, found)
    release_sets.run(options.python, str(ROOT / "tools" / "mark_code.py"))
    print(f"{file.relative_to(ROOT)}: {len(found['kinds'])} kinds of model")


def check_transformers(python: Path, rows: Rows) -> None:
    """Raise SystemExit if an environment has another transformers than the rows."""
    own = f"transformers {release_sets.versions(python)['transformers']}"
    if (outside := measure_reference.name_outside(rows) or "none") != own:
        raise SystemExit(f"{python} has {own}, the rows {outside}: name the rows' environment")


def choose_file(one: release_sets.ReleaseSet, outside: str) -> Path:
    """A set's file for a version of transformers; that of the first one measured has no suffix."""
    first = EVIDENCE / f"{one.slug}.json"
    if evidence_file.read(first).get("outside", outside) == outside:
        return first
    return EVIDENCE / f"{one.slug}-{outside.replace(' ', '-')}.json"


def run(python: Path, models: Sequence[str], jobs: int, mode: str, off: str = "") -> Rows:
    """The rows of ``lab --reference`` for images only; ``off``: a patch that is switched off."""
    return measure_reference.run(python, models, jobs, mode, off, (NAME,))


def settle_crashes(rows: Rows) -> Rows:
    """Blame a crash without the patches on its stage, the first that only the patched run ended.

    A crash stays if that stage is not equal with the patches.
    """
    settled = []
    for row in rows:
        if row["detail"].startswith(CRASHED) and not row["patched"]:
            own = [one for one in rows if one["family"] == row["family"]]
            ended = {one["scenario"] for one in own if not one["patched"]}
            left = [one for one in own if one["scenario"] not in ended]
            if left and left[0]["verdict"] == GREEN:
                detail = f"the release {row['detail'].partition(',')[0]}"
                row = {**row, "scenario": left[0]["scenario"], "detail": detail}
        settled.append(row)
    return settled


def settle_loads(rows: Rows) -> Rows:
    """Blame the release for a folder that it does not load if, with the patches, it is equal."""
    right = {r["scenario"] for r in rows if r["patched"] and r["verdict"] == GREEN}
    settled = []
    for row in rows:
        kind, _, stage = row["scenario"].rpartition(" ")
        refused = stage == "load" and not row["patched"] and LETTERS[row["verdict"]] not in "gr"
        if refused and {f"{kind} load", f"{kind} model"} <= right:
            detail = row["detail"].replace("the copy of the lab does", "it does")
            row = {**row, "verdict": RED, "detail": detail}
        settled.append(row)
    return settled


def make_evidence(one: release_sets.ReleaseSet, python: Path, rows: Rows) -> dict[str, Any]:
    parts = {p: cells(r for r in rows if r["patched"] == (p == "with")) for p in PARTS}
    letters = {part: measure_reference.letters(own) for part, own in parts.items()}
    kinds = sorted({kind for part in letters.values() for kind in part})
    outside = measure_reference.name_outside(rows)
    return {
        "set": one.name,
        "outside": outside,
        "versions": release_sets.versions(python),
        "kinds": {kind: describe(published.entry(kind)) for kind in kinds},
        **letters,
        "crash": crashes(parts),
        "details": {
            part: {
                kind: {n: row["detail"][:SHOWN] for n, row in cells.items() if is_red(row)}
                for kind, cells in own.items()
                if any(map(is_red, cells.values()))
            }
            for part, own in parts.items()
        },
        "not_compared": not_compared(rows),
    }


def describe(one: published.Json) -> dict[str, Any]:
    """The facts of an entry in the table that the audit needs."""
    mark = one.get("mark", "rope_parameters" if one.get("old", True) else "")
    return {"when": one.get("when", {}), "mark": mark, **{k: one[k] for k in ("family", "source")}}


def is_red(row: Mapping[str, Any]) -> bool:
    return bool(row["verdict"] == RED)


def cells(rows: Any) -> Cells:
    """Kind of model to stage to its row, for kinds that were compared or do not load."""
    found: Cells = defaultdict(dict)
    for row in rows:
        kind, _, stage = row["scenario"].partition(":")[2].rpartition(" ")
        own = row["scenario"].startswith(f"{NAME}:") and stage in STAGES
        if own and LETTERS[row["verdict"]] in "gr":
            found[kind][stage] = row
    return {
        kind: own for kind, own in found.items() if "model" in own or any(map(is_red, own.values()))
    }


def crashes(parts: Mapping[str, Cells]) -> dict[str, list[str]]:
    """Kind to the stages that raise, as released or with the patches."""
    return measure_reference.crashes(
        parts, lambda row: is_red(row) and bool(RAISED.search(row["detail"]))
    )


def not_compared(rows: Rows) -> dict[str, str]:
    """Family to the reason if a kind of it was not compared: the table's, or what happened."""
    groups = published.TABLE["not-compared"].values()
    found = {family: one["why"] for one in groups for family in one["families"]}
    for row in rows:
        name = row["scenario"].partition(":")[2]
        kind = name.removesuffix(" load").removesuffix(" model")
        own = row["scenario"].startswith(f"{NAME}:") and kind in published.TABLE["entry"]
        if own and LETTERS[row["verdict"]] not in "gr":
            found[published.entry(kind)["family"]] = f"{kind}: {row['detail'][:SHOWN]}"
    return dict(sorted(found.items()))


def list_types(python: Path) -> set[str]:
    """The model types of an environment's transformers."""
    code = "from transformers import CONFIG_MAPPING; print(*CONFIG_MAPPING)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def explain_absent(found: dict[str, Any], known: set[str]) -> None:
    """Give the families that are not compared because transformers lacks their type that reason."""
    table = published.TABLE["not-compared"]
    own = map(published.entry, published.TABLE["entry"])
    types = {one["family"]: one["type"] for one in own if "when" not in one}
    for name, group in table.items():
        if name not in ("absent", "other", "text"):
            types |= zip(group["families"], group.get("types", group["families"]), strict=True)
    compared = {one["family"] for one in found["kinds"].values()}
    for family, kind in types.items():
        if kind not in known and family not in compared:
            found["not_compared"][family] = table["absent"]["why"]
    found["not_compared"] = dict(sorted(found["not_compared"].items()))


def keep(before: Mapping[str, Any], found: dict[str, Any], measured: set[str]) -> None:
    """Add the file's evidence of families that were not measured now.

    Raises SystemExit if they were compared with another transformers.
    """
    if before and before["outside"] != found["outside"]:
        raise SystemExit(f"{found['set']}: {before['outside']} in the file, not {found['outside']}")
    kinds = {k for k, one in before.get("kinds", {}).items() if one["family"] not in measured}
    places = [(before, found, part) for part in ("kinds", *PARTS, "crash")]
    places += [(before.get("details", {}), found["details"], part) for part in PARTS]
    for old, new, part in places:
        kept = {kind: value for kind, value in old.get(part, {}).items() if kind in kinds}
        new[part] = dict(sorted({**new[part], **kept}.items()))
    families = {published.entry(kind)["family"] for kind in published.TABLE["entry"]} - measured
    reasons = before.get("not_compared", {}).items()
    # Reasons that name no kind are the table's, and are added again where they hold.
    own = [one for one in reasons if one[1].partition(":")[0] in published.TABLE["entry"]]
    kept = {family: why for family, why in own if family in families}
    found["not_compared"] = dict(sorted({**found["not_compared"], **kept}.items()))


def read_needs(file: Path) -> dict[str, dict[str, list[str]]]:
    """The patches of cells, from lines with a scenario and a patch."""
    traced: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in evidence_file.read_lines(file):
        kind, _, stage = one["scenario"].partition(":")[2].rpartition(" ")
        traced[kind][stage].append(one["patch"])
    return traced


def only_repaired(
    traced: Mapping[str, Mapping[str, list[str]]], found: Mapping[str, Any]
) -> dict[str, dict[str, list[str]]]:
    repaired = list_repaired(found)
    return {
        kind: {stage: traced.get(kind, {}).get(stage, []) for stage in stages}
        for kind, stages in repaired.items()
    }


def list_repaired(found: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Kind to the stages that the patches turn green."""
    todo = {
        kind: {
            stage: letter
            for stage, letter in own.items()
            if letter == LETTERS[RED] and found["with"].get(kind, {}).get(stage) == LETTERS[GREEN]
        }
        for kind, own in found["without"].items()
    }
    return {kind: stages for kind, stages in todo.items() if stages}


def needs(python: Path, found: Mapping[str, Any], jobs: int) -> dict[str, dict[str, list[str]]]:
    """Kind to stage to the patches without which it is red."""
    todo = list_repaired(found)
    families = sorted({found["kinds"][kind]["family"] for kind in todo})

    def owners(patch: Patch) -> list[str]:
        modules = [t.module.partition(".")[2] for t in patch.targets if t.distribution == "mlx-vlm"]
        return [
            f"mlx-vlm:{name}"
            for name in families
            if any(m.startswith((f"models.{name}.", *GENERAL)) or "process" in m for m in modules)
        ]

    return measure_reference.trace(
        todo, owners, lambda own, off: cells(run(python, own, jobs, "--patched", off))
    )


def load() -> list[dict[str, Any]]:
    files = [EVIDENCE / f"{one.slug}.json" for one in release_sets.load().values()]
    return [evidence_file.read(file) for file in files if file.exists()]


def table() -> list[str]:
    """The lines of a table of the stages that are off, kinds by release."""
    sets = load()
    kinds = sorted({kind for one in sets for kind in one["kinds"]})
    rows = [[kind, *(_cell(one, kind) for one in sets)] for kind in kinds]
    return evidence_file.table(["model", *(one["set"] for one in sets)], rows)


def _cell(one: Mapping[str, Any], kind: str) -> str:
    """A kind's stages that are off in a release, and whether the patches repair them."""
    red, left = off(one, kind)
    stages = list(dict.fromkeys([*red, *left]))
    if kind not in one["without"] or not stages:
        return "equal" if kind in one["without"] else ""
    end = " (repaired)" if not left else "" if kind in one["with"] else " (patches not measured)"
    return f"{', '.join(stages)}{end}"


def off(one: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """A kind's wrong stages without the patches, and those not right with them.

    A stage may run only with the patches, which repair an earlier one.
    """
    before, after = one["without"].get(kind, {}), one["with"].get(kind, {})
    red = [stage for stage, letter in before.items() if letter == LETTERS[RED]]
    new = [stage for stage in after if stage not in before and after[stage] == LETTERS[RED]]
    return red, [*(stage for stage in red if after.get(stage) != LETTERS[GREEN]), *new]


def page() -> list[str]:
    """Lines for the page of findings: counts by release, then the newest one's wrong stages.

    Kinds that were not measured with the patches are skipped.
    """
    sets = load()
    rows = []
    for one in sets:
        found = [off(one, kind) for kind in one["without"] if kind in one["with"]]
        left, equal = sum(bool(pair[1]) for pair in found), found.count(([], []))
        rows.append((one["set"], equal, len(found) - equal - left, left))
    lines = evidence_file.table(("release set", "equal", "repaired", "different"), rows)
    for one in sets[-1:]:
        found = {kind: off(one, kind)[1] for kind in one["without"] if kind in one["with"]}
        listed = [f"`{kind}` ({', '.join(left)})" for kind, left in found.items() if left]
        lines += ["", f"Different in {one['set']}: {', '.join(listed) or 'none'}."]
    return lines


if __name__ == "__main__":
    evidence_file.run(main)
