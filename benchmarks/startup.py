"""Milliseconds that activation and the commands take: medians over fresh interpreters.

    python benchmarks/startup.py [--rounds 9]

It also prints how much memory `apply()` adds to a process. Run it in an environment with a
release and mlx-patches. As after any first start, the modules' bytecode is read from a cache, also
where PYTHONDONTWRITEBYTECODE is set.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time

APPLY = "import mlx_patches; mlx_patches.apply()"
CASES = {
    "apply() in a bare interpreter": ("", APPLY),
    "apply() after import mlx_lm": ("import mlx_lm", APPLY),
    "apply() after import mlx_vlm": ("import mlx_vlm", APPLY),
    "boot of an enabled environment": ("", "import mlx_patches.activation.boot as b; b.start()"),
    "audit()": ("", "import mlx_patches; mlx_patches.audit()"),
}
COMMANDS = {
    "mlx-patches audit, the whole process": ["audit"],
    "mlx-patches probe MODEL, the whole process": ["probe"],
}
EVERYTHING = """
import contextlib, importlib, mlx_patches
ids = {outcome.patch for outcome in mlx_patches.audit().outcomes}
for outcome in mlx_patches.apply(patches=ids):
    if outcome.status == "pending":
        with contextlib.suppress(ImportError):
            importlib.import_module(outcome.target.partition(":")[0])
"""
PROBED = {"mlx_vlm": "gemma4", "mlx_lm": "llama"}
# ru_maxrss is in KiB on Linux, in bytes on macOS.
UNIT = 1024 if sys.platform == "linux" else 1
MEMORY = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as cache:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        measure(rounds)


def measure(rounds: int) -> None:
    """Print every figure. Each case runs once unmeasured, which writes the bytecode."""
    for name, (before, code) in CASES.items():
        package = before.removeprefix("import ")
        if not package or importlib.util.find_spec(package):
            show(name, [milliseconds(before, code) for _ in range(rounds + 1)][1:])
    package = next(package for package in PROBED if importlib.util.find_spec(package))
    for name, command in COMMANDS.items():
        model = [PROBED[package]] if command == ["probe"] else []
        show(name, [process([*command, *model]) for _ in range(min(rounds, 5) + 1)][1:])
    times = [milliseconds(EVERYTHING, "mlx_patches.status()") for _ in range(min(rounds, 3) + 1)]
    show("status() with every patch in effect and its modules imported", times[1:])
    added = [memory(f"import {package}", APPLY) for _ in range(rounds)]
    print(f"memory that apply() adds after import {package}: {statistics.median(added):.1f} MiB")


def show(name: str, times: list[float]) -> None:
    """Print the median and the best of some times."""
    print(f"{name}: {statistics.median(times):.1f} ms (best {min(times):.1f})")


def milliseconds(before: str, code: str) -> float:
    """Time ``code`` in a fresh interpreter, after it has run ``before``."""
    return fresh(
        f"{before}\nimport time; start = time.perf_counter()\n{code}\n"
        "print((time.perf_counter() - start) * 1e3)"
    )


def memory(before: str, code: str) -> float:
    """MiB that ``code`` adds to a fresh interpreter's peak memory, after ``before``."""
    return fresh(
        f"{before}\nimport resource; start = {MEMORY}\n{code}\n"
        f"print(({MEMORY} - start) * {UNIT} / 2**20)"
    )


def fresh(program: str) -> float:
    """Run a program in a fresh interpreter; returns the number that it prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr.strip().splitlines()[-1])
    return float(done.stdout)


def process(arguments: list[str]) -> float:
    """Time a whole command in milliseconds; it may exit with 1, for a finding."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "mlx_patches", *arguments], capture_output=True)
    if done.returncode not in (0, 1):
        sys.exit(done.stderr.decode().strip())
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
