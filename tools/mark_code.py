"""Records the code that the lab measured in this environment's releases.

    .nox/mlx-lm-0.32.2/bin/python tools/mark_code.py

Adds to mlx_patches/evidence/code.json a hash of each file that a measured family runs, and to
metal.json the families with a Metal-only branch. It reads the releases' files only; it imports and
runs no model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.auditing.modules import metal_branches, modules_of
from mlx_patches.core import distributions
from mlx_patches.core.files import write as write_whole
from mlx_patches.core.fingerprint import hash_module
from mlx_patches.core.packages import DISTRIBUTIONS, MODEL_PACKAGES
from mlx_patches.evidence import code, outside, store
from mlx_patches.lab.families import families


def main() -> None:
    metal = json.loads(store.METAL.read_bytes()) if store.METAL.exists() else {}
    table = {"sets": {}, "images": {}, "releases": [], "modules": {}}
    if code.TABLE.exists():
        table = json.loads(code.TABLE.read_bytes())
    for package, distribution in MODEL_PACKAGES.items():
        here = distributions.find(distribution)
        name = f"{distribution} {here.version if here else ''}"
        # A release without evidence of its own is only a dependency here: skip it.
        if (evidence := store.load_set(name)) is not None:
            metal[name] = marks(package, distribution)
            table["sets"][name] = add(table, package, evidence["without"])
        elif pictured := outside.read_images(name):
            table.setdefault("images", {})[name] = add(table, package, pictured)
    rows = [f"{json.dumps(name)}: {json.dumps(metal[name])}" for name in sorted(metal)]
    write_whole(store.METAL, "{\n" + ",\n".join(rows) + "\n}\n")
    rows = [
        f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}"
        for name, one in sorted(table["modules"].items())
    ]
    facts = ",\n".join(f'"{n}": {json.dumps(one)}' for n, one in table.items() if n != "modules")
    write_whole(code.TABLE, "{" + facts + ',\n"modules": {\n' + ",\n".join(rows) + "\n}}\n")


def marks(package: str, distribution: str) -> dict[str, tuple[str, ...]]:
    """Family to its modules with such a branch."""
    find = cache(distributions.source_file)
    found = {one.name: metal_branches(package, one.name, find) for one in families(distribution)}
    return {family: modules for family, modules in found.items() if modules}


def add(table: dict, package: str, measured: Iterable[str]) -> dict[str, str]:
    """Add the files that a set's measured families run, and return its releases."""
    find = cache(distributions.source_file)
    installed = cache(distributions.find)
    used = set()
    for module in {one for family in measured for one in modules_of(package, family, find)}:
        path, distribution = find(module), DISTRIBUTIONS[module.partition(".")[0]]
        if path is None:
            continue
        used.add(distribution)
        release = f"{distribution} {installed(distribution).version}"
        if release not in table["releases"]:
            table["releases"].append(release)
        number = table["releases"].index(release)
        rows = table["modules"].setdefault(module, [])
        content = path.read_bytes()
        digest, print_ = code.digest(content), hash_module(content)
        row = next((one for one in rows if one[0] == digest), None)
        if row is None:
            rows.append(row := [digest, print_, []])
        row[2] = sorted({*row[2], number})
    return {one: installed(one).version for one in sorted(used)}


if __name__ == "__main__":
    main()
