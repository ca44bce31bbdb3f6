"""Start the processes that run walks; after a crash or a hang, continue with the next walk."""

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
from ...core.files import printable, shell_word
from ...evidence.words import GREEN, NOT_APPLICABLE, NOT_RUN, RED
from .. import children, runner
from ..runner import Row, Task, describe_end
from .program import parse
from .walk import reason

WALKS = "walks"
# Default walking time per family, in seconds.
SECONDS = 20.0
# Maximum processes per family; one ends early on a crash, a hang or a failed patch.
STARTS = 5


@dataclass
class Red:
    """A reason for red walks: its description, the number of walks, and the line of a small one."""

    failure: str
    line: str
    walks: int = 1


@dataclass
class Walked:
    """The walks of a family, patched or unpatched.

    ``sequences``: the number of rows in completed walks.
    ``verdict`` and ``detail``: the cell's verdict and its reason if no walk was red.
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
    setup: str = ""

    def row(self) -> Row:
        verdict, detail = self.verdict, self.detail
        if self.reds and verdict != NOT_RUN:
            verdict, red = RED, sum(red.walks for red in self.reds)
            detail = f"{red} of {self.walks} walks: {self.reds[0].failure}"
        elif not detail and self.walks == self.refused:
            verdict, detail = NOT_APPLICABLE, f"{self.walks} walks, all of them refused"
        elif not detail:
            # Refused walks prove nothing: a family without batching has thousands of them.
            detail = f"{self.walks - self.refused} walks, {self.sequences} sequences"
        place = (runner.environment(), self.family, self.patched)
        return Row(*place, WALKS, verdict, detail, device=self.device, setup=self.setup)

    def lines(self) -> Iterator[str]:
        """For each reason, a line that reports it and a command that replays it."""
        mode, flag = ("with", "--patched") if self.patched else ("without", "--unpatched")
        flag += " --every-patch" * self.every_patch
        for red in self.reds:
            yield printable(f"{self.family} {mode} the patches, {red.walks} walks: {red.failure}")
            yield f"    mlx-patches lab {flag} --replay {shell_word(red.line)}"


def run(
    tasks: Iterable[Task],
    seconds: float = SECONDS,
    seed: int = 0,
    jobs: int = 1,
    patience: float = runner.SECONDS,
    out: Path | None = None,
    report: Callable[[Task, list[Row]], None] = lambda task, rows: None,
    show: Callable[[Walked], None] = lambda walked: None,
) -> list[Row]:
    """Run walks for each task's family and return the cells; see ``runner.run``.

    Args:
        seconds: the time per family.
        seed: the seed of the first walk; it increases by 1 per walk.
        patience: the time after which a walk counts as hung.
        show: called with the walks of each family missing from ``out``.
    """

    def one(task: Task) -> list[Row]:
        walked = walk(task, seconds, seed, patience)
        show(walked)
        return [walked.row()]

    what = f"walks of {seconds:g} s from seed {seed}"
    walks = [replace(task, scenarios=(WALKS,), walks=what) for task in tasks]
    return runner.run(walks, jobs, patience, out, report, one)


def walk(task: Task, seconds: float, seed: int = 0, patience: float = runner.SECONDS) -> Walked:
    """Run walks of one family until the time is up; restart the process if it ends early."""
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
    line: str, mode: str = "both", every_patch: bool = False, patience: float = runner.SECONDS
) -> list[Walked]:
    """Run the walk on a line; for ``mode`` and ``every_patch`` see ``runner.tasks``."""
    tasks = runner.tasks((parse(line).family,), (), mode, every_patch=every_patch)
    found = [_none_yet(task) for task in tasks]
    for task, walked in zip(tasks, found, strict=True):
        _process(command(task, "--replay", line), walked, patience)
    return found


def _none_yet(task: Task) -> Walked:
    return Walked(str(task.family), task.patched, task.every_patch, setup=task.setup)


def command(task: Task, *more: str) -> list[str]:
    flags = ["--patched"] * task.patched + ["--every-patch"] * task.every_patch
    return module_command("mlx_patches.lab.walks.child", str(task.family), *flags, *more)


def _process(command: Sequence[str], walked: Walked, patience: float) -> int | None:
    """Record a process's events; returns the seed of the last walk if it ended early."""
    seed, line, over, late = None, "", False, False

    def stop() -> None:
        nonlocal late
        late = True
        child.end()

    with tempfile.TemporaryFile("w+") as errors:
        streams = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        with children.start(command, runner.exact_environment(), **streams) as child:
            for event in _events(child.process, patience, stop):
                if "walk" in event:
                    seed, line = event["walk"], event["line"]
                    walked.walks += 1
                elif "over" in event:
                    over = True
                else:
                    _add_event(walked, line, event)
                    line = ""
            code = child.wait()
        errors.seek(0)
        end = f"does not end: stopped after {patience:g} s" if late else ""
        end = end or describe_end(code, errors.read())
    is_killed = runner.judge_end(code) == NOT_RUN and (code < 0 or seed is None)
    if is_killed and not over and not late:
        walked.verdict, walked.detail = NOT_RUN, end
    elif line:
        _add_event(walked, line, {"failure": end or "ended early"})
    elif seed is None and not over:
        walked.verdict, walked.detail = RED, f"before the first walk: {end or 'ended early'}"
    return None if over else seed


def _events(
    process: subprocess.Popen[str], patience: float, stop: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """Yield the events of a process; calls ``stop`` after ``patience`` seconds of silence."""
    assert process.stdout is not None
    while True:
        timer = Timer(patience, stop)
        timer.start()
        event = process.stdout.readline()
        timer.cancel()
        if not event.endswith("\n"):
            return
        yield json.loads(event)


def _add_event(walked: Walked, line: str, event: dict[str, Any]) -> None:
    if failure := event.get("failure"):
        known = next((red for red in walked.reds if reason(red.failure) == reason(failure)), None)
        if known is None:
            walked.reds.append(Red(failure, line))
        elif "small" in event:
            known.failure, known.line = failure, event["small"]
        else:
            known.walks += 1
    walked.refused += "refused" in event
    walked.sequences += event.get("sequences", 0)
    walked.verdict = event.get("verdict", walked.verdict)
    walked.detail = event.get("detail", walked.detail)
    walked.device = event.get("device", walked.device)
