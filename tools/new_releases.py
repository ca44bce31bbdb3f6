"""Adds new releases on the package index to the release sets, so that they get measured.

A new mlx-lm, mlx-vlm or vllm-mlx becomes a release set, dated today. Users of any set may install
a new mlx, so it re-dates the newest set of each distribution and deletes that set's evidence. The
index is read through pip; this needs the network.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping

import measure_lab
import patch_evidence
import release_sets
from packaging.version import Version
from release_sets import ReleaseSet

SETS = release_sets.HERE / "release_sets.toml"
WATCHED = release_sets.HERE / "watched.toml"


def main() -> None:
    sets = release_sets.load()
    seen = tomllib.loads(WATCHED.read_text())
    added, again, newer = news(sets, seen, released)
    today = datetime.date.today().isoformat()
    SETS.write_text(with_sets(SETS.read_text(), added, again, today))
    for name, version in newer.items():
        old = WATCHED.read_text()
        WATCHED.write_text(old.replace(f'{name} = "{seen[name]}"', f'{name} = "{version}"'))
    for name in again:
        patch_evidence.forget_set(name)
        (measure_lab.EVIDENCE / f"{sets[name].slug}.json").unlink(missing_ok=True)
    said = [*added, *(f"{name} {version}" for name, version in newer.items())]
    print("\n".join(said) or "nothing new")


def news(
    sets: Mapping[str, ReleaseSet],
    seen: Mapping[str, str],
    released: Callable[[str], list[str]],
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


def released(distribution: str) -> list[str]:
    """Every final release that the index offers, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", distribution]
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if found is None:
        sys.exit(f"pip does not list the versions of {distribution}: {done.stderr.strip()[-200:]}")
    return sorted(found[1].split(", "), key=Version)


if __name__ == "__main__":
    main()
