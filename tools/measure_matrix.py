"""Measures every patch on every release set, and writes the matrix from the evidence.

    python tools/measure_matrix.py               measure the patches without evidence, then write
    python tools/measure_matrix.py --write       only write compat_matrix.yaml
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
from pathlib import Path
from typing import Any

import matrix_file
import measure_lab
import model_rows
import patch_evidence
import release_sets
import shards
from matrix_file import MATRIX
from patch_evidence import Cells, Evidence
from release_sets import ReleaseSet

from mlx_patches.matrix import matrix
from mlx_patches.patches import catalogue

BEGIN = "# -- measured: written by tools/measure_matrix.py from the patches' evidence.json --\n"
END = "# -- end of what is measured --\n"


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
    patch_evidence.check_folders()
    if options.take:
        patch_evidence.take(options.take)
    if not options.write:
        sets = options.shard.of(list(release_sets.load().values()))
        if options.distinct:  # what was seen before is of another probe or patch
            for id_ in options.patches or ():
                patch_evidence.forget_patch(catalogue.builtin().get(id_))
        if options.sets:
            sets = [one for one in sets if one.name in options.sets]
        started = time.monotonic()
        Measuring(options.patches, options.again, options.distinct).run(sets, options.jobs)
        say_what_is_left(options.patches, (time.monotonic() - started) / max(len(sets), 1))
    write_matrix()


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
        self._writing = threading.Lock()
        self._seen: set[tuple[Any, ...]] = set()

    def run(self, sets: Iterable[ReleaseSet], jobs: int) -> None:
        """Measure the sets, ``jobs`` at a time."""
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(self.measure, sets))

    def measure(self, one: ReleaseSet) -> None:
        """Measure what is to be measured on a set, and add it to the evidence."""
        builtin = catalogue.builtin()
        todo = [
            patch.id
            for patch in builtin
            if any(t.distribution == one.distribution and not t.supports for t in patch.targets)
            and (self.patches is None or patch.id in self.patches)
            and (self.again or not patch_evidence.measured(patch, one.name))
        ]
        if usual := [id_ for id_ in todo if not builtin.get(id_).mlx]:
            with release_sets.environment(one) as python:
                if self.distinct:
                    usual = self._with_new_code(one, python, usual)
                rows = probed(one, python, usual) if usual else []
                self._add(one, usual, rows, release_sets.versions(python))
        for id_ in todo:
            if mlx := builtin.get(id_).mlx:  # whatever MLX the set's date gives
                rows = []
                try:
                    with release_sets.environment(one.with_mlx(mlx[-1])) as python:
                        rows = probed(one, python, [id_])
                except release_sets.Unsolvable:
                    pass  # the release accepts no MLX that has the defect
                self._add(one, [id_], rows, None)

    def _with_new_code(self, one: ReleaseSet, python: Path, todo: list[str]) -> list[str]:
        """The patches of whose targets this set has other code than the sets before it.

        On a set that was never measured, a patch whose targets' code was all seen on other sets
        gets the evidence of these.
        """
        found: dict[str, list[Any]] = {}
        for row in child(one, python, todo, "--code"):
            found.setdefault(row["patch"], []).append((row["target"], row["body"]))
        is_new = not self.patches and one.name not in patch_evidence.known_versions()
        for id_ in todo if is_new else ():
            patch = catalogue.builtin().get(id_)
            known = patch_evidence.known(patch, one.distribution)
            supporting = {target.path for target in patch.targets if target.supports}
            here = [code for code in found[id_] if code[1] and code[0] not in supporting]
            if all(code in known for code in here):
                with self._writing:
                    cells = {code[0]: known[code] for code in here}
                    patch_evidence.add(patch, one.name, cells)
                del found[id_]
        todo = list(found)
        with self._writing:
            new = [id_ for id_ in todo if (id_, *found[id_]) not in self._seen]
            self._seen |= {(id_, *found[id_]) for id_ in new}
        return new

    def _add(
        self,
        one: ReleaseSet,
        todo: list[str],
        rows: list[tuple[dict[str, Any], dict[str, Any]]],
        versions: dict[str, str] | None,
    ) -> None:
        """Add the results of some patches to their evidence."""
        with self._writing:
            for id_ in todo:
                patch = catalogue.builtin().get(id_)
                cells = cells_of(id_, rows)
                patch_evidence.add(patch, one.name, cells)
                verdicts = {cell["without"] for cell in cells.values()} or {"absent"}
                print(f"{one.name}: {id_}: {' and '.join(sorted(verdicts))} without it", flush=True)
            if todo and versions:
                patch_evidence.add_versions({one.name: versions})


def cells_of(patch_id: str, rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> Cells:
    """One patch's cells, of the results without and with it."""
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


def say_what_is_left(patches: list[str] | None, seconds: float) -> None:
    """Say on how many sets patches were not measured, because a range may span them.

    Args:
        seconds: what a set took.
    """
    sets = release_sets.load().values()
    for patch in catalogue.builtin():
        if patches and patch.id not in patches:
            continue
        distributions = {t.distribution for t in patch.targets if not t.supports}
        own = [one for one in sets if one.distribution in distributions]
        left = [one.name for one in own if not patch_evidence.measured(patch, one.name)]
        if left:
            print(
                f"{patch.id}: measured on {len(own) - len(left)} of {len(own)} release sets;"
                " its range may span the others. To measure these, in about"
                f" {len(left) * seconds / 60:.1f} minutes: make measure PATCH={patch.id} ALL=1"
            )


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
    found = patch_evidence.load()
    for one in found:
        for patch, targets in one["patches"].items():
            # A target that its module only imports is measured in the module that defines it.
            own = {path: cell for path, cell in targets.items() if cell["body"] is not None}
            one["patches"][patch] = own
    return found


def measured_block(evidence: list[Evidence]) -> str:
    """The matrix's releases and patches, and the patches for every model, as YAML text."""
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
            raise SystemExit(f"{patch} {was} {target} on {release}: {seen['detail']}")
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
            if body in other:  # the target's ``fingerprint_of`` must name more functions
                raise SystemExit(f"{patch} {target}: body {body} is red and green ({release})")
            if body not in mine:
                mine.append(body)
    return found


def write_matrix() -> None:
    """Write the measured parts of compat_matrix.yaml, and compile the matrix."""
    patch_evidence.prune()
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
