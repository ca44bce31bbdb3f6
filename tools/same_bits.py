"""Compares the logits of right families without patches and with every patch, bit by bit.

    python tools/same_bits.py mlx-lm --jobs 2 --out FILE

Uses the installed release. A family is right if none of its lab cells is red without patches. All
scenarios of such a family must produce the same logits, bit for bit, with every patch in effect,
except the patches that also change solo rows.
Prints one JSON line for each family. Exits with 1 if a right family's bits changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.evidence.words import RED

SECONDS = 400


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help="a distribution, or DISTRIBUTION:FAMILY")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(compare_bits(options.target)))
        return
    from mlx_patches.lab.families import families

    names = [options.target] if ":" in options.target else [*map(str, families(options.target))]
    changed = False
    with ThreadPoolExecutor(options.jobs) as pool:
        for line in pool.map(child, names):
            changed |= bool(line.get("changed"))
            print(json.dumps(line), flush=True)
            if options.out:
                with open(options.out, "a") as file:
                    file.write(json.dumps(line) + "\n")
    sys.exit(changed)


def child(family: str) -> dict[str, Any]:
    """Compare a family in its own process; returns its line."""
    from mlx_patches.lab.kernels import kernel_folder

    command = [sys.executable, __file__, family, "--child"]
    try:
        with kernel_folder() as kernels:
            env = {**os.environ, "TMPDIR": str(kernels)}
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=env)
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return {"family": family, "problem": type(error).__name__}


def compare_bits(family: str) -> dict[str, Any]:
    """Run a family without and with patches; returns the scenarios whose bits differ."""
    import mlx_patches
    from mlx_patches.lab import NotBuilt
    from mlx_patches.lab.child import every_patch
    from mlx_patches.patches import catalogue

    try:
        before = digests(family)
    except NotBuilt as reason:
        return {"family": family, "problem": str(reason)}
    if any(verdict == RED for verdict, _ in before.values()):
        return {"family": family, "right": False}
    others = {patch.id for patch in catalogue.builtin() if patch.changes_solo or patch.wrong_solo}
    mlx_patches.apply(patches=set(every_patch()) - others)
    after = digests(family)
    changed = [name for name in before if before[name] != after[name]]
    return {"family": family, "right": True, "scenarios": len(before), "changed": changed}


def digests(family: str) -> dict[str, tuple[str, str]]:
    """Scenario to its verdict and a digest of all logits of its batched rows."""
    import mlx.core as mx
    import numpy as np

    from mlx_patches.lab import Family, compare, scenarios
    from mlx_patches.lab.build import build

    model = build(Family(*family.split(":", 1)))
    digest = hashlib.sha256()

    def note(array: Any) -> None:
        if array is not None:
            digest.update(np.array(array.astype(mx.float32)).tobytes())

    def differences(generated: Any, *rest: Any) -> Any:
        for row in generated:
            for position in sorted(row):
                note(row[position])
        return real_differences(generated, *rest)

    def compare_generated(generated: Any, *rest: Any) -> Any:
        for row in generated:
            for one in row:
                digest.update(str(one.token).encode())
                note(one.every)
        return real_compare_generated(generated, *rest)

    real_differences, real_compare_generated = compare.differences, compare.compare_generated
    found = {}
    with ExitStack() as replaced:
        for module in [m for n, m in sys.modules.items() if n.startswith("mlx_patches.lab")]:
            for wrapper in (differences, compare_generated):
                name = wrapper.__name__
                if getattr(module, name, None) in (real_differences, real_compare_generated):
                    replaced.enter_context(mock.patch.object(module, name, wrapper))
        for name, scenario in scenarios.SCENARIOS.items():
            digest = hashlib.sha256()
            verdict = scenario(model).verdict
            found[name] = (verdict, digest.hexdigest())
    return found


if __name__ == "__main__":
    main()
