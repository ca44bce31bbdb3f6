"""Runs nox sessions, and says how far it is and how long each took.

    python tools/run_sessions.py quick         what `make test` runs
    python tools/run_sessions.py quick rest    what `make test-all` runs

The arguments are tags of noxfile.py. Sessions with the tag `single` keep one core busy: they come
first, two at a time, and what one prints is shown when it has ended. The others run one after
another. Every session runs, also after one that failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

NOX = (sys.executable, "-m", "nox")
SINGLE = "single"
AT_A_TIME = 2


class Result(NamedTuple):
    """A session that has ended; what it printed, where that was kept."""

    name: str
    seconds: float
    passed: bool
    printed: str | None


def main() -> None:
    names, single = sessions(sys.argv[1:])
    count, started = len(names) + len(single), time.monotonic()
    results: list[Result] = []
    if single:
        print(f"\n== first, {AT_A_TIME} at a time: {', '.join(single)}", flush=True)
    for result in two_at_a_time(single):
        results.append(result)
        print(f"\n== {len(results)} of {count}: {result.name}; {minutes(started)} so far")
        print(result.printed, flush=True)
    for name in names:
        print(f"\n== {len(results) + 1} of {count}: {name}; {minutes(started)} so far", flush=True)
        results.append(run(name))
    print()
    for result in results:
        word = "passed" if result.passed else "FAILED"
        print(f"{word}  {result.seconds:6.0f} s  {result.name}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    print(f"{minutes(started)} in all")
    sys.exit(1 if failed else 0)


def sessions(tags: list[str]) -> tuple[list[str], list[str]]:
    """The sessions with one of these tags, in the order of noxfile.py; the single ones apart."""
    command = [*NOX, "--list", "--json", *(word for tag in tags for word in ("--tags", tag))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names: list[str] = []
    single: list[str] = []
    for one in json.loads(done.stdout):
        (single if SINGLE in one["tags"] else names).append(one["session"])
    return names, single


def two_at_a_time(names: list[str]) -> Iterator[Result]:
    """Run sessions side by side; each as it ends."""
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for done in as_completed([pool.submit(run, name, quiet=True) for name in names]):
            yield done.result()


def run(name: str, quiet: bool = False) -> Result:
    """Run a session, and keep what it prints where that is not shown at once."""
    begun = time.monotonic()
    out, errors = (subprocess.PIPE, subprocess.STDOUT) if quiet else (None, None)
    command = [*NOX, "--session", name]
    done = subprocess.run(command, text=True, stdout=out, stderr=errors)
    return Result(name, time.monotonic() - begun, done.returncode == 0, done.stdout)


def minutes(since: float) -> str:
    """How long ago that was."""
    whole, rest = divmod(round(time.monotonic() - since), 60)
    return f"{whole} min {rest} s"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
