"""Writes the table of known release files, which activation need not parse.

    python tools/known_files.py

Needs uv. A line is a file's digest, and the fingerprint and position of each name in the file
that a patch mentions.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import evidence_file
import release_sets
from release_sets import ReleaseSet

from mlx_patches.core import known_files
from mlx_patches.core.files import write as write_whole

# Runs in a set's environment.
DESCRIBE = """
import collections, json
from mlx_patches.core import fingerprint, known_files
from mlx_patches.patches import catalogue
from mlx_patches.core.distributions import source_file
names = collections.defaultdict(set)
for patch in catalogue.builtin():
    for target in patch.targets:
        names[target.module].update(target.mentions)
for module, wanted in sorted(names.items()):
    path = source_file(module)
    if path is not None:
        content = path.read_bytes()
        entry = fingerprint.describe_file(content, sorted(wanted))
        print(known_files.digest(content), json.dumps(entry, separators=(",", ":")))
"""


def main() -> None:
    sets = release_sets.load().values()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(describe_set, sets))
    rows = {row for text in found for row in text.splitlines()}
    for row in rows:
        json.loads(row.partition(" ")[2])
    write_whole(known_files.TABLE, "".join(f"{row}\n" for row in sorted(rows)))
    print(f"{len(rows)} files of {len(found)} release sets")


def describe_set(one: ReleaseSet) -> str:
    """The table's lines for one set."""
    with release_sets.environment(one) as python:
        return release_sets.run(python, "-c", DESCRIBE)


if __name__ == "__main__":
    evidence_file.run(main)
