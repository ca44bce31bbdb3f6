"""Runs nox sessions, and says how far it is and how long each took.

    python tools/run_sessions.py quick         what `make test` runs
    python tools/run_sessions.py quick rest    what `make test-all` runs

The arguments are tags of noxfile.py. The sessions run one after another. Those with the tag
`single` leave a core idle for most of their time: they run beside the others, one at a time, and
what one prints is shown when it has ended. Every session runs, also after one that failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

NOX = (sys.executable, "-m", "nox")
SINGLE = "single"


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
    print()
    for result in results:
        word = "passed" if result.passed else "FAILED"
        print(f"{word}  {result.seconds:6.0f} s  {result.name}")
    failed = sum(not result.passed for result in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    print(f"{minutes(started)} in all")
    sys.exit(1 if failed else 0)


def shown(result: Result) -> Result:
    """Print what a session printed that ran beside others."""
    print(f"\n== {result.name}\n{result.printed}", flush=True)
    return result


def sessions(tags: list[str]) -> tuple[list[str], list[str]]:
    """The sessions with one of these tags, in the order of noxfile.py; the single ones apart."""
    command = [*NOX, "--list", "--json", *(word for tag in tags for word in ("--tags", tag))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    names: list[str] = []
    single: list[str] = []
    for one in json.loads(done.stdout):
        (single if SINGLE in one["tags"] else names).append(one["session"])
    return names, single


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
