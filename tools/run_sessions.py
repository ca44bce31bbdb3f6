"""Runs nox sessions, and prints the progress and how long each session took.

    python tools/run_sessions.py quick         what `make test` runs
    python tools/run_sessions.py quick rest    what `make test-all` runs

The arguments are tags of noxfile.py. As many sessions run at a time as the machine has cores, each
with one test process: a second process of one session would import the release and collect the
tests again. Two sessions of one environment never run at a time, since one may enable the patches
there. The output of a session is printed when it ends. A failed session does not stop the rest; the
end of its output is printed again at the very end.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from mlx_patches.lab.kernels import kernel_folder

NOX = (sys.executable, "-m", "nox")
LAST = 60  # how many lines of a failed session are printed again
# More need much memory.
AT_ONCE = min(os.cpu_count() or 1, 4)


class Result(NamedTuple):
    """A session that has ended, and its output."""

    name: str
    seconds: float
    passed: bool
    printed: str


def main() -> None:
    waiting = sessions(sys.argv[1:])
    if not waiting:
        sys.exit(f"no session of noxfile.py has the tag {' or '.join(sys.argv[1:])}")
    count, started = len(waiting), time.monotonic()
    running: dict[Future[Result], str] = {}
    results: list[Result] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while waiting or running:
            while len(running) < AT_ONCE and (name := startable(waiting, running.values())):
                waiting.remove(name)
                print(f"\n== {name} has started", flush=True)
                running[pool.submit(run, name)] = name
            for ended in wait(running, return_when=FIRST_COMPLETED).done:
                del running[ended]
                results.append(ended.result())
                far = f"{len(results)} of {count} done, {minutes(started)} so far"
                print(f"\n== {results[-1].name}; {far}\n{results[-1].printed}", flush=True)
    for result in results:
        if not result.passed:
            end = "\n".join(result.printed.splitlines()[-LAST:])
            print(f"\n== FAILED: {result.name}; the end of its output\n{end}")
    print()
    for result in results:
        word = "passed" if result.passed else "FAILED"
        print(f"{word}  {result.seconds:6.0f} s  {result.name}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    print(f"{minutes(started)} in all")
    sys.exit(1 if failed else 0)


def sessions(tags: list[str]) -> list[str]:
    command = [*NOX, "--list", "--json", *(word for tag in tags for word in ("--tags", tag))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [one["session"] for one in json.loads(done.stdout)]


def startable(waiting: Iterable[str], running: Iterable[str]) -> str:
    """The first session whose environment no running session uses; empty if there is none."""
    used = set(map(environment, running))
    return next((name for name in waiting if environment(name) not in used), "")


def environment(name: str) -> str:
    """The part of a session's name in brackets: its release set, or its Python."""
    found = re.search(r"\((.*)\)", name)
    return found[1] if found else name


def run(name: str) -> Result:
    """Run a session, with a separate folder for the kernels that MLX compiles."""
    begun = time.monotonic()
    with kernel_folder() as kernels:
        done = subprocess.run(
            [*NOX, "--session", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # in the same pipe, so that errors stay in order
            text=True,
            errors="replace",
            env={**os.environ, "TMPDIR": str(kernels), "MLX_PATCHES_TEST_WORKERS": "0"},
        )
    return Result(name, time.monotonic() - begun, done.returncode == 0, done.stdout)


def minutes(since: float) -> str:
    """Format the time since ``since`` as minutes and seconds."""
    whole, rest = divmod(round(time.monotonic() - since), 60)
    return f"{whole} min {rest} s"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
