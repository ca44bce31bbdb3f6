"""Finds the model families with a Metal-only branch in this environment's releases.

    .nox/mlx-lm-0.32.2/bin/python tools/mark_metal.py

Adds them to mlx_patches/evidence/metal.json, one line for each release. It reads the releases'
files only; it imports and runs no model.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.auditing.metal import metal_branches
from mlx_patches.core import distributions
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import store
from mlx_patches.lab.families import families


def main() -> None:
    known = json.loads(store.METAL.read_bytes()) if store.METAL.exists() else {}
    for package, distribution in MODEL_PACKAGES.items():
        here = distributions.find(distribution)
        # A release without evidence of its own is only a dependency here: skip it.
        if here and store.load_set(distribution, here.version):
            known[f"{distribution} {here.version}"] = marks(package, distribution)
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known)]
    store.METAL.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def marks(package: str, distribution: str) -> dict[str, tuple[str, ...]]:
    """Family to its modules with such a branch; families without one are left out."""
    find = cache(distributions.source_file)
    found = {one.name: metal_branches(package, one.name, find) for one in families(distribution)}
    return {family: modules for family, modules in found.items() if modules}


if __name__ == "__main__":
    main()
