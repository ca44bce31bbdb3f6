"""The contexts of the matrix: the other requests with which a request is sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from .client import Answer, Client, Request
from .oracle import CONTEXT, END, LOOP, RING, TELL
from .parameters import Parameter
from .process import Process

SOLO, STREAMED, SINGLE = "solo", "streamed", "one by one"
# How many more tokens a neighbour has that must still run when the request is answered.
MORE = 40
# Answers up to this number of tokens have it for a reason.
SHORT = 12
# How a client leaves: its stream, or before an answer; or it sends half a body, or nonsense.
LEAVING = ("cancel", "hang-up", "half", "fail")


@dataclass
class Company:
    """The requests of a context and their answers.

    ``sent``: the requests of the parameter; ``neighbours``: the plain requests beside them.
    """

    sent: list[Request] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    neighbours: list[tuple[Request, Answer]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A server's endpoint, and the pool that sends concurrent requests to it."""

    client: Client
    process: Process
    endpoint: str
    pool: ThreadPoolExecutor
    other: str = ""

    def send(self, request: Request, stream: bool = False, model: str = "") -> Answer:
        return self.client.send(self.endpoint, request, stream, model=model)

    def start(self, request: Request) -> Future[Answer]:
        """Begin a streamed request; returns when its first part has come."""
        begun = threading.Event()
        future = self.pool.submit(self.client.send, self.endpoint, request, True, begun.set)
        future.add_done_callback(lambda _: begun.set())
        begun.wait(self.client.seconds)
        return future


# Sends a parameter's requests, streamed or not, in a context.
Context = Callable[[Place, Parameter, bool], Company]


def solo(place: Place, parameter: Parameter, stream: bool) -> Company:
    requests = list(parameter.requests)
    return Company(requests, [place.send(one, stream, parameter.model) for one in requests])


def joins(place: Place, parameter: Parameter, stream: bool) -> Company:
    """The request joins a plain one that runs."""
    company = Company()
    for request in parameter.requests:
        neighbour = replace(parameter.plain, tokens=request.tokens + MORE)
        running = place.start(neighbour)
        company.sent.append(request)
        company.answers.append(place.send(request, stream))
        company.neighbours.append((neighbour, running.result()))
    return company


def is_joined(place: Place, parameter: Parameter, stream: bool) -> Company:
    """A plain request joins the one that runs."""
    company = Company()
    for request in parameter.requests:
        if request.tokens > SHORT:
            request = replace(request, tokens=request.tokens + MORE)
        running = place.start(request)
        company.neighbours.append((parameter.plain, place.send(parameter.plain, stream)))
        company.sent.append(request)
        company.answers.append(running.result())
    return company


def crowd(place: Place, parameter: Parameter, stream: bool) -> Company:
    """Several requests at once, and as many plain ones."""
    requests = list(parameter.requests) * (3 if len(parameter.requests) == 1 else 1)
    futures = [
        (one, place.pool.submit(place.send, one, stream))
        for pair in zip(requests, [parameter.plain] * len(requests), strict=True)
        for one in pair
    ]
    answers = [(one, future.result()) for one, future in futures]
    mine, plain = answers[::2], answers[1::2]
    return Company([one for one, _ in mine], [answer for _, answer in mine], plain)


def take_turns(place: Place, parameter: Parameter, stream: bool, before: int = 1) -> Company:
    """A later turn of a conversation, over a cache that the server may have kept."""
    company = Company()
    for number, request in enumerate(parameter.requests):
        last = " " + request.texts[0].split()[-1]
        # Scripts begin a turn later: no answer with a call or a thinking section is sent back.
        free = last in (*RING, *LOOP, *CONTEXT)
        # Another start for each parameter: no other request's cache is hit.
        unique = f"{RING[number + before]}{RING[len(parameter.name)]}"
        first = request.texts[0] if free else f"{RING[0]}{TELL}"
        turn = Request((begin(unique, first),), request.fields if free else {"temperature": 0}, 10)
        for left in range(before, 0, -1):
            answer = place.send(turn, stream)
            if not answer.text.strip():
                company.sent.append(turn)
                company.answers.append(answer)
                break
            history = (*turn.texts, f" {answer.text.strip()}")
            turn = replace(turn, texts=(*history, last if free or left == 1 else TELL))
        else:
            final = replace(turn, fields=request.fields, tokens=request.tokens)
            company.sent.append(final)
            company.answers.append(place.send(final, stream))
    return company


def begin(words: str, text: str) -> str:
    """Put words before a text, after its pictures."""
    pictures, end, rest = text.rpartition(END)
    return pictures + end + words + rest


def one_by_one(place: Place, parameter: Parameter, stream: bool) -> Company:
    """With a seed: some servers then serve one request at a time."""
    seeded = [
        replace(one, fields={"seed": 7, **one.fields}, texts=(begin(RING[3], one.texts[0]),))
        for one in parameter.requests
    ]
    return take_turns(place, replace(parameter, requests=tuple(seeded)), stream)


def after_others(place: Place, parameter: Parameter, stream: bool) -> Company:
    """After neighbours that failed, left their stream, hung up, or sent half a body."""
    neighbour = replace(parameter.plain, tokens=120)
    for left in [place.pool.submit(leave, place, one, neighbour) for one in LEAVING]:
        left.result()
    return solo(place, parameter, stream)


def leave(place: Place, way: str, request: Request, after: float = 0.15) -> None:
    """A client that does not wait for its answer, or sends nonsense; ``way``: one of LEAVING."""
    client, endpoint = place.client, place.endpoint
    if way == "half":
        client.cut(endpoint, request)
    elif way == "fail":
        client.post(endpoint, b'{"model": 1, "max_tokens": -1}')
    else:
        client.leave(endpoint, request, way == "cancel", after)


def after_swap(place: Place, parameter: Parameter, stream: bool) -> Company:
    """After a request to another model."""
    place.send(replace(parameter.plain, tokens=4), model=place.other)
    return solo(place, parameter, stream)


CONTEXTS: dict[str, Context] = {
    SOLO: solo,
    STREAMED: lambda place, parameter, _: solo(place, parameter, True),
    "joins another": joins,
    "joined by another": is_joined,
    "several at once": crowd,
    "second turn": take_turns,
    "third turn": partial(take_turns, before=2),
    SINGLE: one_by_one,
    "after others left": after_others,
    "after a model swap": after_swap,
}


def hang_up(place: Place, stream: bool, seed: bool) -> str | None:
    """The fault if a request is served after its client hung up; None if that is not known."""
    fields = {"temperature": 0, **({"seed": 1} if seed else {})}
    request = Request((f"{RING[0]}{RING[1]}",), fields, 20000)
    place.client.leave(place.endpoint, request, stream, 1.0)
    used = 0.0
    # Servers look for the client now and then; one that does not is busy much longer.
    for _ in range(5):
        before = place.process.demand()
        time.sleep(1.0)
        after = place.process.demand()
        if before is None or after is None:
            return None
        if (used := after - before) <= 0.5:
            return ""
    return f"busy for {used:.1f} s of the fifth second after the client hung up"
