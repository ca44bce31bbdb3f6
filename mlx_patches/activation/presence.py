"""Says which processes have patches in effect: a small file each, that ``mlx-patches ps`` reads.

The files are in a folder that only their user can read, and say nothing of a command's arguments,
which may hold secrets. A process holds a lock on its file; where nobody does, the process has ended
and the file is stale. Nothing here raises: a host runs as well without.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import stat
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# A file says little; one that is larger is not ours.
LIMIT = 100_000
# How long a thread waits for another one's turn.
SECONDS = 1.0


class Process(NamedTuple):
    """A process with patches in effect.

    Args:
        pid: its number.
        host: what it was started as: a script's name, or ``-m MODULE``.
        releases: what is patched, as ``mlx-lm 0.31.3``.
        patches: the ids in effect.
        withdrawn: the id of each patch that failed in calls, and why it was taken out.
        version: of mlx_patches.
    """

    pid: int
    host: str
    releases: tuple[str, ...]
    patches: tuple[str, ...]
    withdrawn: Mapping[str, str]
    version: str


class Presence:
    """This process's file. Made on the first ``tell``, removed at the process's end.

    Threads take turns: a descriptor that one has closed may already be somebody else's file.
    """

    def __init__(self, folder: Path | None = None):
        self._folder = folder
        self._file: io.FileIO | None = None
        self._pid = 0
        self._turn = threading.Lock()

    def tell(self, content: Mapping[str, Any]) -> None:
        """Write what is in effect now."""
        with self._my_turn() as mine:
            if mine:
                try:
                    self._write({**content, "host": started_as()})
                except (OSError, ValueError):
                    self._remove()

    def forget(self) -> None:
        """Remove the file of this process; a parent's stays."""
        with self._my_turn() as mine:
            if mine:
                self._remove()

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[bool]:
        """False where it does not come: a forked child has the lock as it was at the fork."""
        mine = self._turn.acquire(timeout=SECONDS)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()

    def _write(self, content: Mapping[str, Any]) -> None:
        if self._pid != os.getpid():  # at first, and in a forked child
            self._file, self._pid = None, os.getpid()
            atexit.register(self.forget)
        if self._file is None:
            self._file = self._open()
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
            self._file.write(json.dumps({**content, "pid": self._pid}).encode())

    def _remove(self) -> None:
        if self._file is None or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._file.close()
            (self._folder or folder()).joinpath(f"{self._pid}.json").unlink(missing_ok=True)
        self._file = None

    def _open(self) -> io.FileIO | None:
        place = self._folder or folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours_alone(place):
            return None
        path = place / f"{os.getpid()}.json"
        path.unlink(missing_ok=True)  # of a process that had this number before
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+")
        _lock(file.fileno())
        return file


def processes(place: Path | None = None) -> list[Process]:
    """The processes of this user that have patches in effect; removes files of ended ones."""
    place = place or folder()
    found = []
    try:
        files = sorted(place.glob("*.json")) if is_ours_alone(place) else []
    except OSError:
        files = []
    for path in files:
        process = _read(path)
        if process is not None:
            found.append(process)
    return found


def folder() -> Path:
    """Where this user's files are."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime:
        import tempfile  # a host has it; not at start-up

        runtime = tempfile.gettempdir()
    return Path(runtime) / f"mlx_patches-{user}"


def is_ours_alone(place: Path) -> bool:
    """Whether a folder belongs to this user, and nobody else can write to it or read it."""
    try:
        found = place.lstat()
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and mine and not found.st_mode & 0o077


def started_as() -> str:
    """What this process was started as, without its arguments."""
    words = sys.orig_argv[1:]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-m":
            return f"-m {following}"
        if word == "-c":
            return "-c"
        if not word.startswith("-"):
            return os.path.basename(word)
    return "python"


def _read(path: Path) -> Process | None:
    try:
        file = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return None
    try:
        # A forked child may hold the lock of a parent that has ended.
        if _lock(file) or not _is_running(int(path.stem)):
            path.unlink(missing_ok=True)
            return None
        raw = json.loads(os.pread(file, LIMIT, 0))
        return Process(
            int(raw["pid"]),
            str(raw["host"]),
            _texts(raw["releases"]),
            _texts(raw["patches"]),
            {str(key): str(value) for key, value in dict(raw["withdrawn"]).items()},
            str(raw["version"]),
        )
    except (OSError, ValueError, KeyError, TypeError):  # being written, or not ours
        return None
    finally:
        os.close(file)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's, so it runs
    return True


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(str, values))


def _lock(file: int) -> bool:
    """Take the lock of a file, which its process holds while it lives; False where it is held."""
    try:
        import fcntl
    except ImportError:  # Windows: such files are never stale to us
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
