"""Starts the processes that walk, and goes on with the next walk where one crashes or hangs."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer
from typing import Any

from ...activation.children import module_command
from ...core.files import printable
from ...evidence.words import GREEN, NOT_APPLICABLE, RED
from .. import runner
from ..kernels import kernel_folder
from ..runner import Row, Task, ended
from .program import parse
from .walk import reason

WALKS = "walks"
# How long one walks in a family that is named without a time.
SECONDS = 20.0
# A family whose walks crash or hang so often is walked no further.
STARTS = 5


@dataclass
class Red:
    """A reason for which walks are red: in words, how many walks, and the line of a small one."""

    said: str
    line: str
    walks: int = 1


@dataclass
class Walked:
    """The walks of a family without or with the patches.

    ``sequences``: the rows of the walks that ran to their end.
    ``verdict`` is that of a cell, and ``detail`` says why, where no walk was red.
    """

    family: str
    patched: bool
    every_patch: bool = False
    walks: int = 0
    sequences: int = 0
    refused: int = 0
    reds: list[Red] = field(default_factory=list)
    verdict: str = GREEN
    detail: str = ""
    device: str = ""

    def row(self) -> Row:
        """The walks as one cell."""
        verdict, detail = self.verdict, self.detail
        if self.reds:
            verdict, red = RED, sum(red.walks for red in self.reds)
            detail = f"{red} of {self.walks} walks: {self.reds[0].said}"
        elif not detail and self.walks == self.refused:
            verdict, detail = NOT_APPLICABLE, f"{self.walks} walks, all of them refused"
        elif not detail:
            # A refused walk tells nothing: a family that batches nothing has thousands of them.
            detail = f"{self.walks - self.refused} walks, {self.sequences} sequences"
        place = (runner.environment(), self.family, self.patched)
        return Row(*place, WALKS, verdict, detail, device=self.device)

    def lines(self) -> Iterator[str]:
        """For each reason a line that says it and a command that replays it."""
        mode, flag = ("with", "--patched") if self.patched else ("without", "--unpatched")
        flag += " --every-patch" * self.every_patch
        for red in self.reds:
            yield printable(f"{self.family} {mode} the patches, {red.walks} walks: {red.said}")
            yield f"    mlx-patches lab {flag} --replay '{printable(red.line)}'"


def run(
    tasks: Iterable[Task],
    seconds: float = SECONDS,
    seed: int = 0,
    jobs: int = 1,
    patience: float = runner.SECONDS,
    out: Path | None = None,
    tell: Callable[[Task, list[Row]], None] = lambda task, rows: None,
    hear: Callable[[Walked], None] = lambda walked: None,
) -> list[Row]:
    """Walk in each task's family and return the cells.

    Args:
        tasks: the families, each without or with the patches.
        seconds: how long to walk in each.
        seed: of the first walk; the next has the next seed.
        jobs: families at a time.
        patience: how long one walk may take before it counts as one that does not end.
        out: as for ``runner.run``, so that a run that was cut goes on where it was.
        tell: called after each family.
        hear: called with the walks of each family that ``out`` lacks.

    Raises:
        MlxPatchesError: ``out`` cannot be read or written.
    """

    def one(task: Task) -> list[Row]:
        walked = walk(task, seconds, seed, patience)
        hear(walked)
        return [walked.row()]

    walks = [replace(task, scenarios=(WALKS,)) for task in tasks]
    return runner.run(walks, jobs, patience, out, tell, one)


def walk(task: Task, seconds: float, seed: int = 0, patience: float = runner.SECONDS) -> Walked:
    """Walk in one family until the time is over, in a new process where one ends early."""
    walked = _none_yet(task)
    end = time.monotonic() + seconds
    for _ in range(STARTS):
        more = ("--seconds", f"{seconds:g}", "--seed", str(seed))
        last = _process(command(task, *more), walked, patience)
        seconds = end - time.monotonic()
        if last is None or seconds <= 0:
            break
        seed = last + 1
    return walked


def replay(
    line: str,
    mode: str = "both",
    every_patch: bool = False,
    patience: float = runner.SECONDS,
) -> list[Walked]:
    """Run the walk that a line says; ``mode`` and ``every_patch`` as for ``runner.tasks``.

    Raises:
        MlxPatchesError: it is no walk, or its family is not here.
    """
    tasks = runner.tasks((parse(line).family,), (), mode, every_patch=every_patch)
    found = [_none_yet(task) for task in tasks]
    for task, walked in zip(tasks, found, strict=True):
        _process(command(task, "--replay", line), walked, patience)
    return found


def _none_yet(task: Task) -> Walked:
    return Walked(str(task.family), task.patched, task.every_patch)


def command(task: Task, *more: str) -> list[str]:
    """The command line of a task's process."""
    flags = ["--patched"] * task.patched + ["--every-patch"] * task.every_patch
    return module_command("mlx_patches.lab.walks.child", str(task.family), *flags, *more)


def _process(command: Sequence[str], walked: Walked, patience: float) -> int | None:
    """Hear a process to its end.

    Returns:
        The seed of its last walk if it ended before its time, else None.
    """
    seed, line, over, late = None, "", False, False

    def stop() -> None:
        nonlocal late
        late = True
        process.kill()

    with kernel_folder() as kernels, tempfile.TemporaryFile("w+") as errors:
        env = runner.exact_environment(kernels)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env
        ) as process:
            try:
                for event in _events(process, patience, stop):
                    if "walk" in event:
                        seed, line = event["walk"], event["line"]
                        walked.walks += 1
                    elif "over" in event:
                        over = True
                    else:
                        _hear(walked, line, event)
                        line = ""
            except BaseException:
                process.kill()
                raise
        errors.seek(0)
        end = f"does not end: stopped after {patience:g} s" if late else ""
        end = end or ended(process.returncode, errors.read())
    if line:
        _hear(walked, line, {"said": end or "ended early"})
    elif seed is None and not over:
        walked.verdict, walked.detail = RED, f"before the first walk: {end or 'ended early'}"
    return None if over else seed


def _events(
    process: subprocess.Popen[str], patience: float, stop: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """What a process says, line by line; ``stop`` is called where it says nothing for so long."""
    assert process.stdout is not None
    while True:
        timer = Timer(patience, stop)
        timer.start()
        said = process.stdout.readline()
        timer.cancel()
        if not said.endswith("\n"):
            return
        yield json.loads(said)


def _hear(walked: Walked, line: str, event: dict[str, Any]) -> None:
    """Add what a process said of the walk that this line says."""
    if said := event.get("said"):
        known = next((red for red in walked.reds if reason(red.said) == reason(said)), None)
        if known is None:
            walked.reds.append(Red(said, line))
        elif "small" in event:
            known.said, known.line = said, event["small"]
        else:
            known.walks += 1
    walked.refused += "refused" in event
    walked.sequences += event.get("sequences", 0)
    walked.verdict = event.get("verdict", walked.verdict)
    walked.detail = event.get("detail", walked.detail)
    walked.device = event.get("device", walked.device)
