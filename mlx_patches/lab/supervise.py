"""Runs a command until it ends or standard input closes; then ends its process group.

python -m mlx_patches.lab.supervise [--server] COMMAND...

The pipe closes whatever ends the parent, also SIGKILL, so no process outlives it. ``TMPDIR`` is the
command's own kernel folder: what the command leaves there is removed. ``--server`` prints the
command's process group, sends its output to standard error and gives it an empty home. Without a
command, prints the folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from .kernels import kernel_folder

# Seconds that a process has to end by itself.
GRACE = 5
# The exit code of a command that a signal ended is this plus the signal's number, as in shells.
SIGNALLED = 128


def main() -> None:
    is_server = sys.argv[1:2] == ["--server"]
    command = sys.argv[1 + is_server :]
    with kernel_folder() as folder:
        if command:
            code = run(command, folder, is_server)
        else:
            print(folder, flush=True)
            code = bool(sys.stdin.read())
    # A thread may still hold the lock of standard input, for which a normal exit would wait.
    os._exit(SIGNALLED - code if code < 0 else code)


def run(command: list[str], folder: Path, is_server: bool) -> int:
    """Run a command; returns its exit code, negative if a signal ended it."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    # Servers keep prefix caches below the home folder, and list the models of the hub's cache.
    own = {"HOME": str(home), "HF_HUB_CACHE": str(home), "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if is_server else None,
        env=os.environ | {"TMPDIR": str(folder)} | (own if is_server else {}),
        start_new_session=True,
    )
    threading.Thread(target=wait_for_parent, args=(process,), daemon=True).start()
    if is_server:
        print(process.pid, flush=True)
    code = process.wait()
    end_group(process)  # what it started
    return code


def wait_for_parent(process: subprocess.Popen[bytes]) -> None:
    """End a process group when standard input closes."""
    sys.stdin.read()
    end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process group, gently at first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)


if __name__ == "__main__":
    main()
