"""Adds to release_sets.toml the releases that it does not name yet, dated today.

Asks the package index through pip, as an install would; needs the network.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys

import release_sets
from packaging.version import Version

WATCHED = ("mlx-lm", "mlx-vlm")
FILE = release_sets.HERE / "release_sets.toml"


def main() -> None:
    known = {(one.distribution, one.version) for one in release_sets.load().values()}
    added = []
    for distribution in WATCHED:
        newest = max(Version(version) for name, version in known if name == distribution)
        for version in released(distribution):
            if Version(version) > newest:
                added.append(f"{distribution} {version}")
    today = datetime.date.today()
    with FILE.open("a") as file:
        for name in added:
            file.write(f'\n["{name}"]\ndate = {today}\n')
    print("\n".join(added) or "nothing new")


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
