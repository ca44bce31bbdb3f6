"""Reads the files of the processes with patches in effect, for ``mlx-patches ps``."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..core.files import quote
from .presence import folder, is_ours_alone, lock

# In bytes. Our files are small; a larger one is not ours.
LIMIT = 100_000


class Process(NamedTuple):
    """A process with patches in effect.

    Args:
        host: the command: a script's name, or ``-m MODULE``.
        withdrawn: the id of each patch that always failed, and its error.
        failures: the id of each patch that failed in calls, and its error.
    """

    pid: int
    host: str
    releases: tuple[str, ...]
    patches: tuple[str, ...]
    withdrawn: Mapping[str, str]
    failures: Mapping[str, str]
    version: str


def processes() -> list[Process]:
    """This user's processes with patches in effect; removes the files of ended ones."""
    place = folder()
    try:
        files = sorted(place.glob("*.json")) if is_ours_alone(place) else []
    except OSError:
        files = []
    return [one for one in map(_read, files) if one is not None]


def _read(path: Path) -> Process | None:
    try:
        file = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        # A forked child may hold the lock of a parent that has ended.
        if lock(file) or not _is_running(int(path.stem)):
            path.unlink(missing_ok=True)
            return None
        raw = json.loads(os.pread(file, LIMIT, 0))
        return Process(
            int(raw["pid"]),
            quote(raw["host"]),
            tuple(map(quote, raw["releases"])),
            tuple(map(quote, raw["patches"])),
            _reasons(raw["withdrawn"]),
            _reasons(raw.get("failures", {})),
            quote(raw["version"]),
        )
    # Being written, or not ours.
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    finally:
        os.close(file)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # not permitted: it runs as another user
    return True


def _reasons(values: Mapping[str, Any]) -> dict[str, str]:
    return {quote(key): quote(value) for key, value in dict(values).items()}
