"""Runs a server until its standard input closes, then ends the server's process group.

python -m mlx_patches.lab.server.supervise COMMAND...

The pipe closes whatever ends the lab, also SIGKILL, so no server outlives it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

# Seconds that a server has to end by itself.
GRACE = 5


def main() -> None:
    """Run the command of the arguments."""
    with subprocess.Popen(
        sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    ) as server:
        print(server.pid, flush=True)
        closed = threading.Event()

        def wait_for_end() -> None:
            sys.stdin.read()
            closed.set()

        threading.Thread(target=wait_for_end, daemon=True).start()
        while server.poll() is None and not closed.wait(0.1):
            pass
        end_group(server)
    sys.exit(server.returncode)


def end_group(server: subprocess.Popen[bytes]) -> None:
    """End a process group, gently at first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)


if __name__ == "__main__":
    main()
