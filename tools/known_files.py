"""Writes the table of the releases' files, by which activation recognises them unparsed.

    python tools/known_files.py

Needs uv. A row is a file's digest and, for each name that a patch is about, its fingerprint
and where it begins.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import measure_matrix
import release_sets
from release_sets import ReleaseSet

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from mlx_patches import _known  # noqa: E402

# Runs in a set's environment.
DESCRIBE = """
import collections, json
from mlx_patches import _fingerprint, _known, _registry
from mlx_patches._distributions import source_file
names = collections.defaultdict(set)
for patch in _registry.builtin():
    for target in patch.targets:
        names[target.module].update(target.mentions)
for module, wanted in sorted(names.items()):
    path = source_file(module)
    if path is not None:
        content = path.read_bytes()
        entry = _fingerprint.describe_file(content, sorted(wanted))
        print(_known.digest(content), json.dumps(entry, separators=(",", ":")))
"""


def main() -> None:
    sets = release_sets.load().values()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(described, sets))
    rows = {row for text in found for row in text.splitlines()}
    for row in rows:
        json.loads(row.partition(" ")[2])
    _known.TABLE.write_text("".join(f"{row}\n" for row in sorted(rows)))
    print(f"{len(rows)} files of {len(found)} release sets")


def described(one: ReleaseSet) -> str:
    """The rows of one set."""
    with release_sets.environment(one) as python:
        return measure_matrix.run(python, "-c", DESCRIBE)


if __name__ == "__main__":
    main()
