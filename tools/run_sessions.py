"""Runs nox sessions one after another, and says how far it is and how long each took.

    python tools/run_sessions.py quick         what `make test` runs
    python tools/run_sessions.py quick rest    what `make test-all` runs

The arguments are tags of noxfile.py. Every session runs, also after one that failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

NOX = (sys.executable, "-m", "nox")


def main() -> None:
    names = sessions(sys.argv[1:])
    started = time.monotonic()
    results: list[tuple[str, float, bool]] = []
    for number, name in enumerate(names, 1):
        print(f"\n== {number} of {len(names)}: {name}; {minutes(started)} so far", flush=True)
        begun = time.monotonic()
        done = subprocess.run([*NOX, "--session", name])
        results.append((name, time.monotonic() - begun, done.returncode == 0))
    print()
    for name, seconds, passed in results:
        print(f"{'passed' if passed else 'FAILED'}  {seconds:6.0f} s  {name}")
    failed = sum(not passed for _, _, passed in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    print(f"{minutes(started)} in all")
    sys.exit(1 if failed else 0)


def sessions(tags: list[str]) -> list[str]:
    """The names of the sessions that have one of these tags, in the order of noxfile.py."""
    command = [*NOX, "--list", "--json", *(word for tag in tags for word in ("--tags", tag))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [one["session"] for one in json.loads(done.stdout)]


def minutes(since: float) -> str:
    """How long ago that was."""
    whole, rest = divmod(round(time.monotonic() - since), 60)
    return f"{whole} min {rest} s"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main()
