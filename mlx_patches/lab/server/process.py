"""Starts a server around the scripted model on loopback, and ends its process group."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...activation.children import child_environment
from ...activation.settings import SWITCH
from ...core.errors import MlxPatchesError
from .. import children

START_SECONDS = 240.0


@dataclass(frozen=True, slots=True)
class Process:
    """A running server. ``group``: its process group, 0 if it is not ours."""

    url: str
    model: str
    log: Path | None = None
    group: int = 0

    @property
    def alive(self) -> bool:
        """Whether the server's first process runs; assumed of a server that is not ours."""
        return not self.group or is_running(self.group)

    def demand(self) -> float | None:
        """Seconds for which the server's threads ran or waited for a CPU; None if not reported."""
        if not self.group or not Path("/proc/self/schedstat").exists():
            return None
        demand = 0
        for folder, _ in each_process(self.group):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                for thread in folder.glob("task/*/schedstat"):
                    ran, waited, _ = map(int, thread.read_text().split())
                    demand += ran + waited
        return demand / 1e9

    def text(self, start: int = 0) -> str:
        """The server's log from a number of bytes on."""
        return self.log.read_bytes()[start:].decode(errors="replace") if self.log else ""

    def last_line(self) -> str:
        plain = re.sub(r"\x1b\[[\d;]*m", "", self.text())
        return (plain.strip().splitlines() or ["its log is empty"])[-1].strip()


def each_process(group: int) -> Iterator[tuple[Path, list[str]]]:
    """The folder in /proc of each process of a group's session, and its ``stat`` after the name."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            # The command's name, in parentheses, may have spaces.
            fields = file.read_text().rpartition(")")[2].split()
            if int(fields[3]) == group:
                yield file.parent, fields


def is_running(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def run(
    command: str,
    names: dict[str, Path],
    patched: bool | None,
    log: Path,
    python: str = sys.executable,
    port: int = 0,
) -> Iterator[Process]:
    """Run a server until the context ends.

    Args:
        command: the server's command line. ``{port}`` and the names in braces are replaced.
        names: what they are replaced by; the first is the folder of the served model.
        patched: with the patches or without them; None: as the environment is enabled.
        log: the file for the server's output.
        python: the interpreter of the server's environment.
        port: the server's port; 0 for any free one.
    """
    port = port or free_port()
    words = split(command, {name: str(path) for name, path in names.items()}, port)
    environment = child_environment()
    if patched is None:
        del environment[SWITCH]
    # A host imports so much that it starts in minutes if it compiles all of it each time.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("PYTHONPYCACHEPREFIX", str(log.with_name("bytecode")))
    paths = (str(Path(python).parent), environment.get("PATH", os.defpath))
    environment["PATH"] = os.pathsep.join(paths)
    if shutil.which(words[0], path=environment["PATH"]) is None:
        raise MlxPatchesError(f"--server: {words[0]} is not in this environment: install it")
    if patched:
        words = [python, "-P", "-m", "mlx_patches", "run", "--", *words]
    words.insert(0, "--server")  # for the supervisor
    group = 0
    try:
        with (
            log.open("wb") as out,
            children.start(words, environment, stdout=subprocess.PIPE, stderr=out) as child,
        ):
            assert child.process.stdout
            group = int(child.process.stdout.readline() or 0)
            model = str(next(iter(names.values())))
            process = Process(f"http://127.0.0.1:{port}", model, log, group)
            wait_until_ready(process, child.process)
            yield process
    finally:
        if group:  # the supervisor may have been killed
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def split(command: str, names: dict[str, str], port: int) -> list[str]:
    """The words of a command line with its names replaced."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise MlxPatchesError(f"--server: {error}: {command}") from error
    for name, value in {**names, "port": str(port)}.items():
        words = [word.replace(f"{{{name}}}", value) for word in words]
    return words


def free_port() -> int:
    """A free port.

    A server binds its port some time after this call, a host minutes later. Meanwhile the system
    assigns ports of its ephemeral range to connections, so the port is below that range (32768 on
    Linux, 49152 on macOS).
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def wait_until_ready(process: Process, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until the server lists its models."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if supervisor.poll() is not None:
            raise MlxPatchesError(f"the server ended before it answered: {process.last_line()}")
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{process.url}/v1/models", timeout=5),
        ):
            return
        time.sleep(0.1)
    raise MlxPatchesError(
        f"the server did not answer within {START_SECONDS:.0f} s: {process.last_line()}"
    )
