"""Child processes that leave no process and no file behind, whatever ends them or this process."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..activation.children import child_environment, module_command
from .supervise import GRACE, SIGNALLED


class Done(NamedTuple):
    """How a process ended: ``code`` is negative if a signal ended it, None if it timed out."""

    code: int | None
    out: str
    errors: str


class Child:
    """A running command. Its supervisor ends it if this process ends, in any way."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], **streams: Any):
        reads, writes = os.pipe()
        # Unlike a descriptor, it may be closed twice, also by two threads.
        self._pipe = open(writes, "wb", buffering=0)  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                module_command("mlx_patches.lab.supervise", *command),
                stdin=reads,
                env=environment,
                start_new_session=True,  # an interrupt of the terminal is for this process
                **streams,
            )
        except BaseException:
            self._pipe.close()
            raise
        finally:
            os.close(reads)
        _RUNNING.add(self)

    def end(self) -> None:
        """Ask the supervisor to end the command; it may end later."""
        self._pipe.close()

    def wait(self) -> int:
        """Wait until nothing is left of an ended command; returns its exit code."""
        for last in (self.end, self.process.kill):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(4 * GRACE)
                break
            last()
        code = self.process.wait()
        return SIGNALLED - code if code > SIGNALLED else code


_RUNNING: set[Child] = set()


@contextlib.contextmanager
def start(
    command: Sequence[str], environment: Mapping[str, str] | None = None, **streams: Any
) -> Iterator[Child]:
    """Run a command until the context ends."""
    child = Child(command, environment or child_environment(), **streams)
    try:
        yield child
    finally:
        child.end()
        child.wait()
        _RUNNING.discard(child)


def run(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Done:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with start(command, environment, **pipes) as child:
        try:
            out, errors = child.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.end()
            return Done(None, *child.process.communicate())
        return Done(child.wait(), out, errors)


def end_all() -> None:
    for child in list(_RUNNING):
        child.end()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder that is removed when the context or this process ends, in any way."""
    with start((), stdout=subprocess.PIPE, text=True) as child:
        assert child.process.stdout is not None
        yield Path(child.process.stdout.readline().strip())
