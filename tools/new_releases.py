"""Adds new releases on the package index to the release sets, so that they get measured.

    python tools/new_releases.py              add them
    python tools/new_releases.py --summary    changes of those measured since the last commit, as
    Markdown

A new mlx-lm, mlx-vlm or vllm-mlx becomes a release set, dated today. Users of any set may install a
new mlx, so it re-dates the newest set of each distribution, which is then measured again. Needs the
network: pip reads the index.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import evidence_file
import lab_evidence
import patch_evidence
import release_sets
from packaging.version import Version
from release_sets import ReleaseSet

from mlx_patches.core.files import write as write_whole

SETS = release_sets.HERE / "release_sets.toml"
WATCHED = release_sets.HERE / "watched.toml"


def main() -> None:
    if sys.argv[1:] not in ([], ["--summary"]):
        sys.exit(__doc__)
    if sys.argv[1:]:
        new = patch_evidence.read_versions().keys() - list_committed()
        print("\n".join(summary(patch_evidence.load(), lab_evidence.load(), new)))
        return
    with evidence_file.lock():
        add()


def add() -> None:
    """Add what is new; a second process must not add it again."""
    sets = release_sets.load()
    seen = evidence_file.read(WATCHED)
    added, again, newer = news(sets, seen, list_releases)
    today = datetime.date.today().isoformat()
    if today < (last := max(one.date for one in sets.values())):
        sys.exit(
            f"the clock is at {today}, but a set is of {last}: set the clock; nothing was added"
        )
    write_whole(SETS, with_sets(SETS.read_text(), added, again, today))
    for name, version in newer.items():
        old = WATCHED.read_text()
        write_whole(WATCHED, old.replace(f'{name} = "{seen[name]}"', f'{name} = "{version}"'))
    changes = [*added, *(f"{name} {version}" for name, version in newer.items())]
    print("\n".join(changes) or "nothing new")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with open(output, "a") as file:
            file.write(f"sets={json.dumps([*added, *again])}\n")


def news(
    sets: Mapping[str, ReleaseSet], seen: Mapping[str, str], released: Callable[[str], list[str]]
) -> tuple[list[str], list[str], dict[str, str]]:
    """The sets to add, the sets to measure again, and the newer releases of watched packages."""
    added, newest_sets = [], []
    for distribution in release_sets.DISTRIBUTIONS:
        own = [one for one in sets.values() if one.distribution == distribution]
        newest = max(own, key=lambda one: Version(one.version))
        newest_sets.append(newest.name)
        for version in released(distribution):
            if Version(version) > Version(newest.version):
                added.append(f"{distribution} {version}")
    newer = {}
    for name, version in seen.items():
        latest = released(name)[-1]
        if Version(latest) > Version(version):
            newer[name] = latest
    return added, newest_sets if "mlx" in newer else [], newer


def with_sets(text: str, added: list[str], again: list[str], today: str) -> str:
    """The text of release_sets.toml with ``added`` sets, and the ``again`` sets re-dated."""
    for name in again:
        text = re.sub(rf'(\["{re.escape(name)}"\]\ndate = )\S+', rf"\g<1>{today}", text)
    return text + "".join(f'\n["{name}"]\ndate = {today}\n' for name in added)


def list_committed() -> set[str]:
    file = f"HEAD:{patch_evidence.VERSIONS.relative_to(release_sets.ROOT)}"
    command = ["git", "-C", str(release_sets.ROOT), "show", file]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {release_sets.flatten(done.stderr)}")
    return {*json.loads(done.stdout)}


def summary(
    probed: list[dict[str, Any]], lab: list[dict[str, Any]], new: Collection[str]
) -> Iterator[str]:
    """The changes of each new set from the release before it, as Markdown."""
    cells = {one["set"]: one["patches"] for one in probed}
    results = {one["set"]: lab_evidence.family_results(one) for one in lab}
    for name in [name for name in cells if name in new]:
        own = [one for one in cells if one.split()[0] == name.split()[0]]
        before = own[max(own.index(name) - 1, 0)]
        yield f"\n### {name}, against {before}\n"
        turned: dict[str, list[str]] = {}
        for patch, was in cells[before].items():
            now = cells[name].get(patch, {})
            states = [_state(one) for one in (was, now)]
            if states[0] != states[1]:
                turned.setdefault(f"{states[0]} to {states[1]}", []).append(patch)
            if any(now[one]["body"] != was[one]["body"] for one in was.keys() & now):
                turned.setdefault("other code", []).append(patch)
            if any(one["with"] == "red" for one in now.values()):
                turned.setdefault("not repaired by its patch", []).append(patch)
        yield from (f"- {what}: {', '.join(ids)}" for what, ids in sorted(turned.items()))
        older = [one for one in results if one in own[: own.index(name)]]
        now_, was_ = results.get(name, {}), results[older[-1]] if older else {}
        families: dict[str, list[str]] = {}
        for family, result in now_.items():
            if result != was_.get(family, "new"):
                changed = f"{was_.get(family, 'new')} to {result}"
                families.setdefault(changed, []).append(family)
        yield from (f"- families, {what}: {', '.join(f)}" for what, f in sorted(families.items()))
        if not turned and not families:
            yield "- no result changed"


def _state(cells: Mapping[str, Mapping[str, Any]]) -> str:
    """A patch's defect on a release: red if present, green if not, or its code is missing."""
    found = {one["without"] for one in cells.values() if one["body"]}
    return "red" if "red" in found else "green" if found else "no code"


def list_releases(distribution: str) -> list[str]:
    """Every final release that the index offers, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", distribution]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        why = release_sets.flatten(done.stderr)
        sys.exit(f"{distribution}: {why}; nothing was added; check the network and PIP_INDEX_URL")
    return sorted(found[1].split(", "), key=Version)


if __name__ == "__main__":
    evidence_file.run(main)
