"""Request walks: seeded random traffic of many clients, judged by the oracle, shrunk when red.

A program is one line of steps, ``CLIENT ACTION PARAMETER``, separated by semicolons. A client takes
its steps one after the other, and all clients run at once; ``wait`` waits for all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from ...core.errors import MlxPatchesError
from ...evidence.requests import RIGHT
from .client import CHAT
from .contexts import SOLO, STREAMED, leave, solo, take_turns
from .parameters import Parameter
from .runner import Lab

CLIENTS = 20
LENGTH = 80
# The actions whose answers are judged, those of clients that leave, and how often each is drawn.
JUDGED = {"send": 10, "stream": 10, "turn": 4}
LEAVING = {"cancel": 2, "hang-up": 2, "half": 1, "fail": 1, "swap": 1}
WAIT = "wait"
# Seconds between the starts of two steps.
GAP = 0.01
# Seconds for shrinking a red program.
SHRINKING = 120.0
# How often a shorter program is tried before it counts as right.
TRIES = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One client's action with a request of one parameter."""

    client: int
    action: str
    parameter: str

    def __str__(self) -> str:
        return (
            self.action if self.action == WAIT else f"{self.client} {self.action} {self.parameter}"
        )


@dataclass(frozen=True, slots=True)
class Red:
    """A program with a wrong answer: the step and its fault."""

    steps: tuple[Step, ...]
    step: Step
    fault: str

    def __str__(self) -> str:
        return f"red: {self.step}: {self.fault}\n  --replay '{show(self.steps)}'"


def show(steps: Sequence[Step]) -> str:
    return "; ".join(map(str, steps))


def parse(line: str) -> list[Step]:
    """The steps of a line."""
    steps = []
    for part in filter(None, (one.strip() for one in line.split(";"))):
        client, _, rest = part.partition(" ")
        action, _, parameter = rest.partition(" ")
        if part == WAIT:
            steps.append(Step(0, WAIT, ""))
        elif client.isdigit() and action in (*JUDGED, *LEAVING) and parameter:
            steps.append(Step(int(client), action, parameter))
        else:
            raise MlxPatchesError(
                f"--replay: {part!r}: expected CLIENT ACTION PARAMETER, such as '1 stream top_k'"
            )
    if not steps:
        raise MlxPatchesError("--replay: no step: expected a line that a red walk printed")
    return steps


class Walker:
    """Plays programs on a server; ``usable``: the parameters that single requests honour."""

    def __init__(self, lab: Lab):
        self.lab = lab
        every = [one for one in lab.everything if CHAT in one.endpoints and not one.stream_only]
        self.known = {one.name: one for one in every if not one.model}
        self.usable = [name for name, one in self.known.items() if self._is_usable(one)]
        if not self.usable:
            raise MlxPatchesError("no parameter is right as a single request: run the matrix first")

    def _is_usable(self, parameter: Parameter) -> bool:
        streams = not parameter.contexts or STREAMED in parameter.contexts
        return streams and all(
            self.lab.cell(CHAT, parameter, context).verdict == RIGHT for context in (SOLO, STREAMED)
        )

    def draw(self, seed: int) -> list[Step]:
        draw = random.Random(seed)
        weights = JUDGED | {k: v for k, v in LEAVING.items() if k != "swap" or self.lab.other}
        steps = []
        for _ in range(LENGTH):
            action = draw.choices(list(weights), list(weights.values()))[0]
            steps.append(Step(draw.randrange(CLIENTS), action, draw.choice(self.usable)))
            if draw.random() < 0.03:
                steps.append(Step(0, WAIT, ""))
        return steps

    def play(self, steps: Sequence[Step]) -> Red | None:
        if unknown := [
            s.parameter for s in steps if s.action != WAIT and s.parameter not in self.known
        ]:
            raise MlxPatchesError(f"--replay: {unknown[0]}: the matrix has no such parameter")
        pools = {step.client: ThreadPoolExecutor(1) for step in steps}
        futures: list[tuple[Step, Future[str]]] = []
        for step in steps:
            if step.action == WAIT:
                for _, future in futures:
                    future.result()
                continue
            futures.append((step, pools[step.client].submit(self._take, step)))
            time.sleep(GAP)
        faults = [(step, future.result()) for step, future in futures]
        for pool in pools.values():
            pool.shutdown()
        if not self.lab.is_answering():
            self.lab.start_again("hangs or ended")
        return next((Red(tuple(steps), step, fault) for step, fault in faults if fault), None)

    def _take(self, step: Step) -> str:
        place, parameter = self.lab.place(CHAT), self.known[step.parameter]
        if step.action in JUDGED:
            way = take_turns if step.action == "turn" else solo
            company = way(place, parameter, step.action == "stream")
            verdict, detail = self.lab.judge(CHAT, parameter, company, False)
            return "" if verdict == RIGHT else detail
        request = replace(parameter.requests[0], tokens=60)
        if step.action == "swap":
            place.send(replace(request, tokens=4), model=place.other)
        else:
            leave(place, step.action, request, 0.05)
        return ""

    def walk(self, seconds: float, seed: int) -> Iterator[tuple[int, Red | None]]:
        """Walks for some seconds: each one's number of judged requests, and a small red program."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            steps = self.draw(seed)
            red = self.play(steps)
            yield (
                sum(s.action in JUDGED for s in steps),
                red and self.shrink(red, time.monotonic() + SHRINKING),
            )
            seed += 1

    def shrink(self, red: Red, end: float) -> Red:
        """A smaller program that is red as well: halves, quarters, ... of the steps are dropped."""
        size = len(red.steps) // 2
        while size and time.monotonic() < end:
            start = 0
            while start < len(red.steps) and time.monotonic() < end:
                fewer = red.steps[:start] + red.steps[start + size :]
                found = next(
                    filter(None, (self.play(fewer) for _ in range(TRIES if fewer else 0))), None
                )
                red = found or red
                start += 0 if found else size
            size //= 2
        return red
