"""What activation adds to a process, in milliseconds: medians over fresh interpreters.

python benchmarks/startup.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import subprocess
import sys

APPLY = "import mlx_patches; mlx_patches.apply()"
CASES = {
    "apply() in a bare interpreter": ("", APPLY),
    "apply() after import mlx_lm": ("import mlx_lm", APPLY),
    "apply() after import mlx_vlm": ("import mlx_vlm", APPLY),
    "boot of an enabled environment": ("", "import mlx_patches._boot as b; b.start()"),
    "audit, without a process": ("", "import mlx_patches; mlx_patches.audit()"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for name, (before, code) in CASES.items():
        package = before.removeprefix("import ").strip()
        if package and importlib.util.find_spec(package) is None:
            continue
        times = [milliseconds(before, code) for _ in range(options.rounds)]
        print(f"{name}: {statistics.median(times):.1f} ms (best {min(times):.1f})")


def milliseconds(before: str, code: str) -> float:
    """Time one piece of code in a fresh interpreter, after another."""
    program = (
        f"{before}\nimport time; start = time.perf_counter()\n{code}\n"
        "print((time.perf_counter() - start) * 1e3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return float(done.stdout)


if __name__ == "__main__":
    main()
