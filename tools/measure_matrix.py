"""Measures every patch on every release set, and writes the matrix from the evidence.

    python tools/measure_matrix.py               measure the patches without evidence, then write
    python tools/measure_matrix.py --write       only write compat_matrix.yaml
    python tools/measure_matrix.py --set 'mlx-lm 0.31.3' --patch offset-alias --again

uv makes a temporary environment for each set. The evidence is one file for each set. It holds the
fingerprint of each target of each patch, and the probe's results without and with the patch.
Needs uv.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import matrix_file
import measure_lab
import model_rows
import release_sets
from packaging.version import Version
from release_sets import ReleaseSet

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "tools" / "evidence"
MATRIX = ROOT / "compat_matrix.yaml"
BEGIN = "# -- measured: written by tools/measure_matrix.py from tools/evidence --\n"
END = "# -- end of what is measured --\n"

Evidence = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", action="append", dest="sets", help="only this set")
    parser.add_argument("--patch", action="append", dest="patches", help="only this patch")
    parser.add_argument("--shard", default="1/1", help="I/N: every Nth set, from the Ith")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="also measure what has evidence")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the matrix")
    options = parser.parse_args()
    if not options.write:
        index, count = map(int, options.shard.split("/"))
        sets = list(release_sets.load().values())[index - 1 :: count]
        if options.sets:
            sets = [one for one in sets if one.name in options.sets]
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(lambda one: measure(one, options.patches, options.again), sets))
    write_matrix()


def measure(one: ReleaseSet, patches: list[str] | None, again: bool) -> None:
    """Measure the patches that a set's evidence lacks, and add them."""
    from mlx_patches.patches import catalogue

    file = EVIDENCE / f"{one.slug}.json"
    evidence: Evidence = json.loads(file.read_text()) if file.exists() else {"set": one.name}
    measured = evidence.setdefault("patches", {})
    todo = [
        patch.id
        for patch in catalogue.builtin()
        if any(t.distribution == one.distribution and not t.supports for t in patch.targets)
        and (patches is None or patch.id in patches)
        and (again or patch.id not in measured)
    ]
    if not todo:
        return
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
    builtin = catalogue.builtin()
    if usual := [id_ for id_ in todo if not builtin.get(id_).mlx]:
        with release_sets.environment(one) as python:
            evidence["versions"] = release_sets.versions(python)
            rows += probed(one, python, usual)
    for id_ in todo:
        if mlx := builtin.get(id_).mlx:  # whatever MLX the set's date gives
            try:
                with release_sets.environment(one.with_mlx(mlx[-1])) as python:
                    rows += probed(one, python, [id_])
            except release_sets.Unsolvable:
                pass  # the release accepts no MLX that has the defect
    # A supporting target has no defect itself, so its verdict means nothing.
    supporting = {
        (patch.id, target.path)
        for patch in catalogue.builtin()
        for target in patch.targets
        if target.supports
    }
    for patch_id in todo:
        measured[patch_id] = {
            row["target"]: {
                "body": row["body"],
                "without": row["verdict"],
                "with": after["verdict"],
                "detail": row["detail"],
                **({"detail_with": after["detail"]} if after["verdict"] == "red" else {}),
            }
            for row, after in rows
            if row["patch"] == patch_id
            and row["verdict"] != "n/a"
            and (patch_id, row["target"]) not in supporting
        }
    evidence["patches"] = dict(sorted(measured.items()))
    EVIDENCE.mkdir(exist_ok=True)
    file.write_text(json.dumps(evidence, indent=1) + "\n")
    red = [p for p in todo if any(t["without"] == "red" for t in measured[p].values())]
    print(f"{one.name}: red without its patch: {', '.join(red) or 'nothing'}", flush=True)


def probed(
    one: ReleaseSet, python: Path, patches: list[str]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The results of the probes without and with their patches, for each target."""
    without = child(one, python, patches)
    with_ = child(one, python, patches, "--patched", "--force")
    return list(zip(without, with_, strict=True))


def child(
    one: ReleaseSet, python: Path, patches: Iterable[str], *flags: str
) -> list[dict[str, Any]]:
    """Run the probes in the set's environment; returns one row for each target."""
    arguments = [argument for patch in patches for argument in ("--patch", patch)]
    command = ["-m", "mlx_patches.probes.child", *arguments]
    command += ["--distribution", one.distribution, *flags]
    return json.loads(release_sets.run(python, *command))  # type: ignore[no-any-return]


def load_evidence() -> list[Evidence]:
    """All evidence, oldest releases first, without the targets that a release does not define."""
    found = [json.loads(file.read_text()) for file in EVIDENCE.glob("*.json")]
    for one in found:
        for patch, targets in one["patches"].items():
            # A target that its module only imports is measured in the module that defines it.
            own = {path: cell for path, cell in targets.items() if cell["body"] is not None}
            one["patches"][patch] = own
    return sorted(found, key=lambda e: (e["set"].split()[0], Version(e["set"].split()[1])))


def measured_block(evidence: list[Evidence]) -> str:
    """The matrix's releases and patches, and the patches for every model, as YAML text."""
    from mlx_patches.patches import catalogue

    releases: dict[str, list[Evidence]] = {}
    for one in evidence:
        releases.setdefault(one["set"].split()[0], []).append(one)
    lines = ["releases:"]
    for distribution, sets in releases.items():
        versions = ", ".join(f'"{one["set"].split()[1]}"' for one in sets)
        lines.append(f"  {distribution}: [{versions}]")
    lines.append("patches:")
    for patch in catalogue.builtin():
        body: list[str] = []
        for distribution, sets in releases.items():
            body += rule_lines(patch.id, distribution, sets)
        if body:
            lines += [f"  {patch.id}:", *body]
    lines += ["", "# Active whatever model is loaded, once a module of a target is imported."]
    lines.append(f"always: [{', '.join(for_every_model())}]")
    return "\n".join(lines) + "\n"


def for_every_model() -> list[str]:
    """The ids of the patches that belong to no model."""
    from mlx_patches.patches import catalogue

    return [patch.id for patch in catalogue.builtin() if patch.every_model]


def rule_lines(patch: str, distribution: str, sets: list[Evidence]) -> list[str]:
    """One distribution's rule for a patch as YAML lines; empty if no release has the defect."""
    seen = [
        (one["set"].split()[1], one["patches"][patch]) for one in sets if patch in one["patches"]
    ]
    affected = [release for release, targets in seen if repaired(patch, release, targets)]
    if not affected:
        return []
    order = [release for release, _ in seen]
    first, last = order.index(affected[0]), order.index(affected[-1])
    holes = [release for release in order[first : last + 1] if release not in affected]
    specifier = ",".join(
        [f">={affected[0]}", f"<={affected[-1]}", *(f"!={release}" for release in holes)]
    )
    lines = [f"    {distribution}:", f'      affected: "{specifier}"']
    if order[last + 1 :]:
        lines.append(f'      fixed: ">={order[last + 1]}"')
    bodies = target_bodies(patch, seen)
    if bodies:
        lines.append("      bodies:")
    for target, (red, green) in bodies.items():
        lines.append(f"        {target}:")
        if red:
            lines.append(f"          affected: [{', '.join(red)}]")
        if green:
            lines.append(f"          sound: [{', '.join(green)}]")
    return lines


def repaired(patch: str, release: str, targets: dict[str, Any]) -> bool:
    """True where the release has the defect and the patch repairs it.

    Raises:
        SystemExit: the patch turned a green target red, or left a red one red.
    """
    for target, seen in targets.items():
        if seen["with"] == "red":
            was = "broke" if seen["without"] == "green" else "did not repair"
            raise SystemExit(
                f"{patch} {was} {target} on {release}: {seen.get('detail_with', seen['detail'])}"
            )
    return any(seen["without"] == "red" for seen in targets.values())


def target_bodies(
    patch: str, seen: list[tuple[str, dict[str, Any]]]
) -> dict[str, tuple[list[str], list[str]]]:
    """Target name to its red fingerprints and its green ones.

    Raises:
        SystemExit: a fingerprint was both, so the target's ``body`` must name more functions.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for release, targets in seen:
        for target, cell in targets.items():
            body = cell["body"]
            if body is None or cell["without"] == "n/a":
                continue
            lists = found.setdefault(target.partition(":")[2], ([], []))
            mine, other = lists if cell["without"] == "red" else lists[::-1]
            if body in other:
                raise SystemExit(f"{patch} {target}: body {body} is red and green ({release})")
            if body not in mine:
                mine.append(body)
    return found


def prune(folder: Path = EVIDENCE) -> None:
    """Drop the evidence of patches that no longer exist."""
    from mlx_patches.patches import catalogue

    known = set(catalogue.builtin().ids())
    for file in folder.glob("*.json"):
        evidence: Evidence = json.loads(file.read_text())
        kept = {id_: cells for id_, cells in evidence["patches"].items() if id_ in known}
        if kept.keys() != evidence["patches"].keys():
            file.write_text(json.dumps({**evidence, "patches": kept}, indent=1) + "\n")


def write_matrix() -> None:
    """Write the measured parts of compat_matrix.yaml, and compile the matrix."""
    from mlx_patches.matrix import matrix

    prune()
    text = MATRIX.read_text()
    text = between(text, BEGIN, END, measured_block(load_evidence()))
    models = model_rows.block(measure_lab.load(), for_every_model())
    MATRIX.write_text(between(text, model_rows.BEGIN, model_rows.END, models))
    matrix.COMPILED.write_text(matrix_file.compile_matrix())


def between(text: str, begin: str, end: str, new: str) -> str:
    """Replace the text between the lines ``begin`` and ``end``."""
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + begin + new + end + after


if __name__ == "__main__":
    main()
