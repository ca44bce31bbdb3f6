"""Writes a small file for each process with patches in effect; ``processes`` reads them.

The files are in a folder that only their user can read. They omit a command's arguments, which may
contain secrets. A process holds a lock on its file; if a file is not locked, its process has ended
and the file is stale. Nothing in this module raises: hosts do not depend on these files.
"""

import atexit
import contextlib
import io
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .started import program

# How long a thread waits for its turn to write.
SECONDS = 1.0


class Presence:
    """This process's file. The first ``write`` creates it; it is removed when the process exits.

    Threads take turns: once one has closed a descriptor, its number may belong to another file.
    """

    def __init__(self) -> None:
        self._file: io.FileIO | None = None
        self._pid = 0
        self._turn = threading.Lock()

    def write(self, content: Mapping[str, Any]) -> None:
        self._in_turn(self._write, {**content, "host": program_name()})

    def forget(self) -> None:
        """Remove the file of this process, but not a parent's."""
        self._in_turn(self._remove)

    def after_fork_in_child(self) -> None:
        """Make a new lock: a thread that does not exist in the child may hold the old one."""
        self._turn = threading.Lock()

    def _in_turn(self, do: Callable[..., None], *arguments: Any) -> None:
        """Act, unless another thread holds the lock for long: a host must not wait for its file."""
        if not self._turn.acquire(timeout=SECONDS):
            return
        try:
            do(*arguments)
        except (OSError, ValueError):
            self._remove()
        finally:
            self._turn.release()

    def _write(self, content: Mapping[str, Any]) -> None:
        if self._pid != os.getpid():  # at first, and in a forked child
            self._file, self._pid = None, os.getpid()
            atexit.register(self.forget)
        if self._file is None:
            self._file = self._open()
        if self._file is not None:
            # In one write, and never shorter: ps may read the file meanwhile.
            text = json.dumps({**content, "pid": self._pid}).encode()
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
            self._file.write(text.ljust(size))

    def _remove(self) -> None:
        if self._file is None or self._pid != os.getpid():
            return
        with contextlib.suppress(OSError):
            self._file.close()
            folder().joinpath(f"{self._pid}.json").unlink(missing_ok=True)
        self._file = None

    def _open(self) -> io.FileIO | None:
        place = folder()
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours_alone(place):
            return None
        path = place / f"{os.getpid()}.json"
        path.unlink(missing_ok=True)  # left by an ended process with the same id
        file = io.FileIO(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "r+")
        lock(file.fileno())
        return file


def folder() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime:
        import tempfile  # not at start-up; a host imports it itself

        runtime = tempfile.gettempdir()
    return Path(runtime) / f"mlx_patches-{user}"


def is_ours_alone(place: Path) -> bool:
    """Whether a folder belongs to this user, and no other user can write to it or read it."""
    try:
        found = place.lstat()
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or found.st_uid == os.getuid()
    return stat.S_ISDIR(found.st_mode) and mine and not found.st_mode & 0o077


def program_name() -> str:
    """The script or module that this process runs, without its arguments."""
    option, name = program(sys.orig_argv)
    return f"{option} {os.path.basename(name)}".strip() or "python"


def lock(file: int) -> bool:
    """Lock a file; False if its process holds the lock, which it does until it exits."""
    try:
        import fcntl
    except ImportError:  # Windows: there are no such locks
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
