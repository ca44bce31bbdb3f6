"""Fills the matrix of one server: every parameter in every context, at every endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from ...core.errors import MlxPatchesError
from ...evidence.requests import ABSENT, IGNORED, REFUSED, RIGHT, WRONG
from .client import CHAT, NO_ANSWER, PATHS, Answer, Client, Request
from .contexts import CONTEXTS, SINGLE, SOLO, STREAMED, Company, Place, hang_up
from .judges import Sent
from .oracle import SIGHTS, Language
from .parameters import Parameter, make_request, parameters
from .process import Process
from .table import Cell

HANG_UP = "hang-up"
SWAP = "after a model swap"
# Contexts of a request whose client hangs up: streamed, with a seed.
_HANG_UPS = ((SOLO, False, False), (STREAMED, True, False), (SINGLE, False, True))
# The contexts of endpoints other than chat, which use the same engine.
FEWER = (SOLO, STREAMED, "joins another", "second turn")
# How often a server that ended is started again.
RESTARTS = 12
# Starts the server again, and returns the new process.
Restart = Callable[[], Process]


Key = tuple[str, str, str]


def check_names(only: Iterable[str], parameters: Iterable[str]) -> None:
    """Raise MlxPatchesError if a chosen parameter is unknown."""
    if unknown := sorted({*only} - {*parameters}):
        raise MlxPatchesError(f"--scenario {unknown[0]}: the matrix has no such parameter")


class Lab:
    """One server under measurement. ``known``: the cells of an interrupted run."""

    def __init__(
        self,
        process: Process,
        restart: Restart | None,
        other: str = "",
        patched: bool = False,
        known: Mapping[Key, Cell] | None = None,
        images: bool = False,
    ):
        self.process, self.restart, self.other = process, restart, other
        self.patched, self.known = patched, known or {}
        self.client = Client(process.url, process.model)
        self.pool = ThreadPoolExecutor(16)
        self.language = Language()
        self.restarts = 0
        self.everything = parameters(other, images)
        # What the server's penalties see, as its single requests show.
        self.sights: dict[tuple[str, str], Sequence[str]] = {}

    def place(self, endpoint: str) -> Place:
        return Place(self.client, self.process, endpoint, self.pool, self.other)

    def start_again(self, why: str) -> None:
        """Replace a server that ended or hangs."""
        self.restarts += 1
        line = self.process.last_line()
        if self.restart is None or self.restarts > RESTARTS:
            raise MlxPatchesError(f"the server {why}: {line}")
        self._replace_process()

    def _replace_process(self) -> None:
        assert self.restart
        self.process = self.restart()
        self.client = Client(self.process.url, self.process.model)

    # The cells.

    def cells(self, only: Sequence[str] = ()) -> Iterator[tuple[Cell, int]]:
        """Every cell, one after the other, and their number."""
        check_names(only, (*(one.name for one in self.everything), HANG_UP))
        rows = [
            (endpoint, one, self._contexts(endpoint, one))
            for endpoint in PATHS
            for one in self.everything
            if endpoint in one.endpoints and (not only or one.name in only)
        ]
        total = sum(len(names) for _, _, names in rows)
        for endpoint in PATHS:
            answer = self.place(endpoint).send(make_request(tokens=4))
            # Some servers answer 404 to errors of their own.
            is_absent = answer.status in (404, 405, 501) and "not" in answer.error.lower()
            for where, parameter, names in rows:
                if where != endpoint:
                    continue
                make: Iterator[Cell]
                if is_absent:
                    make = (Cell(endpoint, parameter.name, n, ABSENT, answer.error) for n in names)
                else:
                    make = self._row(endpoint, parameter, names)
                for cell in make:
                    yield replace(cell, patched=self.patched), total
            if not is_absent and (not only or HANG_UP in only):
                for cell in self._hang_ups(endpoint):
                    yield replace(cell, patched=self.patched), total

    def _contexts(self, endpoint: str, parameter: Parameter) -> list[str]:
        """The contexts of a parameter at an endpoint, the one that decides first."""
        names = [name for name in parameter.contexts or CONTEXTS if name != SWAP or self.other]
        if endpoint != CHAT:
            names = [name for name in names if name in FEWER]
        return [name for name in names if name != SOLO or not parameter.stream_only]

    def _row(self, endpoint: str, parameter: Parameter, names: list[str]) -> Iterator[Cell]:
        """A parameter's cells; if it is refused or ignored or hangs at first, it does so in all."""
        first = None
        for name in names:
            if known := self.known.get((endpoint, parameter.name, name)):
                cell = known
            elif first and (first.verdict in (IGNORED, REFUSED) or NO_ANSWER in first.detail):
                cell = replace(first, context=name)
            else:
                cell = self.cell(endpoint, parameter, name)
            first = first or cell
            yield cell

    def cell(self, endpoint: str, parameter: Parameter, context: str) -> Cell:
        """Send a parameter's requests in a context, and judge the answers."""
        place, start = self.place(endpoint), len(self.process.text())
        company = CONTEXTS[context](place, parameter, parameter.stream_only)
        first = context in (SOLO, STREAMED) and (context == SOLO or parameter.stream_only)
        verdict, detail = self.judge(endpoint, parameter, company, first)
        answers = [*company.answers, *(answer for _, answer in company.neighbours)]
        if any(answer.status >= 500 for answer in answers):
            time.sleep(0.2)  # a server logs an error after its reply
            if "No Metal back-end" in self.process.text(start):
                verdict, detail = ABSENT, "needs Metal"
        if context == SINGLE and any(one.refused and "seed" in one.error for one in answers):
            verdict, detail = ABSENT, "it refuses seeds"
        if any("does not have lora params" in one.error for one in answers):  # mlx-vlm 0.5
            verdict, detail = ABSENT, "it has another format of adapters"
        if not self.process.alive:
            verdict, detail = WRONG, f"the server ended: {self.process.last_line()}"
            self.start_again("ended")
        elif any(answer.status == 0 for answer in answers) and not self.is_answering():
            self.start_again("hangs")
        return Cell(endpoint, parameter.name, context, verdict, detail)

    def is_answering(self) -> bool:
        return self.place(CHAT).send(make_request(tokens=2)).status > 0

    def judge(
        self, endpoint: str, parameter: Parameter, company: Company, first: bool
    ) -> tuple[str, str]:
        """The verdict on a company's answers; ``first``: they decide what the server honours."""
        for answer in company.answers:
            if answer.status != 200:
                return REFUSED if answer.refused and first else WRONG, answer.error
        key = (endpoint, parameter.name)

        def judge(requests: list[Request], answers: list[Answer]) -> tuple[str, Sent]:
            sent = Sent(endpoint, self.language, requests, self.sights.get(key, SIGHTS))
            return parameter.judge(answers, sent), sent

        apart = len(parameter.requests) == 1
        groups = (
            [([r], [a]) for r, a in zip(company.sent, company.answers, strict=True)]
            if apart
            else [(company.sent, company.answers)]
        )
        for requests, answers in groups:
            fault, sent = judge(requests, answers)
            if first and not fault and sent.fits:
                self.sights[key] = sent.fits
            if fault:
                ignored = parameter.is_ignored(answers, sent)
                return IGNORED if ignored and first else WRONG, fault
        for request, answer in company.neighbours:
            if answer.status != 200:
                return WRONG, f"the neighbour: {answer.error}"
            sent = Sent(endpoint, self.language, [request])
            if fault := parameter.is_plain([answer], sent):
                return WRONG, f"the neighbour: {fault}"
        return RIGHT, ""

    def _hang_ups(self, endpoint: str) -> Iterator[Cell]:
        for context, stream, seed in _HANG_UPS if endpoint == CHAT else _HANG_UPS[:1]:
            if known := self.known.get((endpoint, HANG_UP, context)):
                yield known
                continue
            fault = hang_up(self.place(endpoint), stream, seed)
            verdict = ABSENT if fault is None else WRONG if fault else RIGHT
            yield Cell(endpoint, HANG_UP, context, verdict, fault or "")
            if fault and self.restart:
                # What is left of the request would slow down everything after it.
                self._replace_process()
