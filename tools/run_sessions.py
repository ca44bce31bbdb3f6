"""Runs nox sessions, and prints the progress and how long each session took.

    python tools/run_sessions.py quick         what `make test` runs
    python tools/run_sessions.py quick rest    what `make test-all` runs

The arguments are tags of noxfile.py. Sessions run one after another. A session with the tag
`single` leaves a core idle most of the time: these run beside the others, one at a time, and their
output is printed when they end. A failed session does not stop the rest; the end of its output is
printed again at the very end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

NOX = (sys.executable, "-m", "nox")
SINGLE = "single"
LAST = 60  # how many lines of a failed session are printed again


class Result(NamedTuple):
    """A session that has ended, and its output."""

    name: str
    seconds: float
    passed: bool
    printed: str


def main() -> None:
    names, single = sessions(sys.argv[1:])
    count, started = len(names) + len(single), time.monotonic()
    results: list[Result] = []
    if single:
        print(f"\n== beside the others: {', '.join(single)}", flush=True)
    with ThreadPoolExecutor(1) as beside:
        waiting = [beside.submit(run, name, quiet=True) for name in single]
        for name in names:
            far = f"{len(results)} of {count} done, {minutes(started)} so far"
            print(f"\n== {name}; {far}", flush=True)
            results.append(run(name))
            while waiting and waiting[0].done():
                results.append(shown(waiting.pop(0).result()))
        results += [shown(one.result()) for one in waiting]
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


def shown(result: Result) -> Result:
    """Print the captured output of a session that ran beside others."""
    print(f"\n== {result.name}\n{result.printed}", flush=True)
    return result


def sessions(tags: list[str]) -> tuple[list[str], list[str]]:
    """The names of the sessions with one of these tags: those to run in order, then the single."""
    command = [*NOX, "--list", "--json", *(word for tag in tags for word in ("--tags", tag))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names: list[str] = []
    single: list[str] = []
    for one in json.loads(done.stdout):
        (single if SINGLE in one["tags"] else names).append(one["session"])
    return names, single


def run(name: str, quiet: bool = False) -> Result:
    """Run a session. ``quiet`` does not show its output meanwhile."""
    begun = time.monotonic()
    command = [*NOX, "--session", name]
    # Errors in the same pipe, so that they stay in order.
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    printed = []
    with subprocess.Popen(command, text=True, errors="replace", **streams) as process:
        for line in process.stdout or ():
            printed.append(line)
            if not quiet:
                print(line, end="", flush=True)
    return Result(name, time.monotonic() - begun, process.returncode == 0, "".join(printed))


def minutes(since: float) -> str:
    """Format the time since ``since`` as minutes and seconds."""
    whole, rest = divmod(round(time.monotonic() - since), 60)
    return f"{whole} min {rest} s"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
