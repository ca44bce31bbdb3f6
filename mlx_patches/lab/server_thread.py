"""Requests through the generator of mlx-vlm's server while it runs, in its own thread.

Its model is a tiny whole one, and its processor returns inputs that are made before. Everything
else is the release's: the queue, the embedding step, the insertion, the steps, the tokens that come
back, and what is done when a client leaves. There is no HTTP, and no file is loaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ..evidence.results import NotApplicable
from . import Generated
from .generators import Endless, generated
from .shrink import VOCABULARY
from .whole import Inputs, Prompt, Whole

# Seconds in which all answers have to come; they take less than one.
SECONDS = 10.0
# Is told a row and how many tokens it has.
See = Callable[[int, int], None]


def response_generator() -> Any:
    """The class that batches the requests of the release's server."""
    for name in ("mlx_vlm.server.generation", "mlx_vlm.server"):
        try:
            kind: Any = getattr(importlib.import_module(name), "ResponseGenerator", None)
        except ModuleNotFoundError:
            continue
        if hasattr(kind, "_gpu_embed"):
            return kind
    raise NotApplicable("the release's server does not batch prompts with images")


def serve(build: Callable[[], Whole], prompts: Sequence[Prompt]) -> list[list[Generated]]:
    """The tokens that the clients of a running generator of this model get, by prompt.

    The first prompt comes alone, and its tokens are the turns: the others come while it is decoded,
    those of one turn together.

    Raises:
        TimeoutError: a client still waits.
        Exception: what the first client whose request failed was told.
    """
    import mlx.core as mx

    kind = response_generator()
    inputs = {f"row {row}": one.inputs for row, one in enumerate(prompts)}
    mx.eval(list(inputs.values()))
    clients = Clients(prompts)
    try:
        with running(kind, build, Processor(inputs, clients.see)) as generator:
            return clients.answers(generator, list(inputs))
    finally:
        clients.dismiss()


@contextlib.contextmanager
def running(kind: Any, build: Callable[[], Whole], processor: Processor) -> Iterator[Any]:
    """A release's generator, whose thread ends with the block."""
    import mlx.core as mx

    def load(*_: Any) -> tuple[Any, Processor, Any]:
        # In the generator's thread, as a release loads: no other can compute what is still lazy.
        # Where a thread ends in which only functions ran that others compiled, MLX 0.31 ends the
        # process (mlx #3619); one that it compiles itself prevents that.
        mx.compile(abs)
        # No token ends a text, so the config names none.
        return build().module, processor, SimpleNamespace(eos_token_id=None)

    module = importlib.import_module(kind.__module__)
    with mock.patch.object(module, "load_model_resources", load):
        generator = kind("", top_logprobs_k=VOCABULARY)
        try:
            generator.wait_until_ready(SECONDS)
            yield generator
        finally:
            generator.stop_and_join()


class Clients:
    """Those who ask a generator: when each comes and leaves."""

    def __init__(self, prompts: Sequence[Prompt]):
        self.prompts = prompts
        self.all: list[Client] = []
        self.asked: list[Any] = []
        self.generator: Any = None
        self.end = 0.0

    def answers(self, generator: Any, texts: Sequence[str]) -> list[list[Generated]]:
        """Ask for the prompts, which have these texts; returns what each client got."""
        self.generator, self.end = generator, time.monotonic() + SECONDS
        pairs = zip(texts, self.prompts, strict=True)
        self.all = [Client(generator, text, one) for text, one in pairs]
        put = generator.requests.put

        def note(request: Any) -> None:
            self.asked.append(request)
            put(request)

        generator.requests.put = note
        self.all[0].start()
        self._until(lambda: any(one.error for one in self.all) or all(map(Client.left, self.all)))
        for error in (one.error for one in self.all if one.error):
            raise error
        return [one.said for one in self.all]

    def see(self, row: int, count: int) -> None:
        """Hold the generator's thread, which has a row's token, until what is due has happened."""
        for client in self.all[1:] if row == 0 else ():
            if client.prompt.turn == count - 1:
                self._comes(client)
        client = self.all[row]
        if client.prompt.leaves and count > client.prompt.count:
            self._until(client.left)

    def dismiss(self) -> None:
        """End the clients who still wait: a release forgets some where another's request fails."""
        for request in filter(None, self.asked):
            queue_of(request).put(RuntimeError("the server has stopped"))
        for client in self.all:
            if client.ident is not None:
                client.join(1)

    def _comes(self, client: Client) -> None:
        # The thread that takes from the queue is held: the queue grows.
        before = self.generator.requests.qsize()
        client.start()
        self._until(lambda: self.generator.requests.qsize() > before or client.left())

    def _until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            if time.monotonic() > self.end:
                said = ", ".join(f"{len(one.said)} of {one.prompt.count}" for one in self.all)
                raise TimeoutError(f"no answer in {SECONDS:g} s; tokens that came, by row: {said}")
            time.sleep(0.001)


def queue_of(request: Any) -> Any:
    """The queue from which a request's client reads its answer."""
    return request[0] if isinstance(request, tuple) else request.rqueue


class Client(threading.Thread):
    """One who asks a generator, and may leave before the answer ends."""

    def __init__(self, generator: Any, text: str, prompt: Prompt):
        super().__init__(daemon=True)
        self.generator, self.text, self.prompt = generator, text, prompt
        self.said: list[Generated] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Ask, and keep what comes."""
        try:
            # An image that is no string is one that the release need not load.
            images = [self.text.encode()] if self.prompt.shown else None
            arguments = greedy(self.generator, self.prompt.asked)
            _, answers = self.generator.generate(self.text, images, args=arguments)
            with contextlib.closing(answers):
                for one in answers:
                    self.said.append(token_of(one))
                    if self.prompt.leaves and len(self.said) == self.prompt.count:
                        return
        except Exception as error:
            self.error = error

    def left(self) -> bool:
        """Whether the client came and has gone."""
        return self.ident is not None and not self.is_alive()


def greedy(generator: Any, count: int) -> Any:
    """A request's arguments for this many of the likeliest tokens, with their log-probabilities."""
    kind = importlib.import_module(type(generator).__module__).GenerationArguments
    wanted = {"max_tokens": count, "temperature": 0.0, "logprobs": True}
    known = {one.name for one in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in known})


def token_of(answer: Any) -> Generated:
    """What a client is told of a token."""
    return generated(
        SimpleNamespace(
            token=answer.token,
            token_logprob=answer.logprobs,
            top_logprobs=answer.top_logprobs,
        )
    )


class Processor:
    """A processor that knows the inputs of each text, and whose texts have no end."""

    chat_template = None
    pad_token = ""

    def __init__(self, inputs: Mapping[str, Inputs], see: See):
        self.inputs = inputs
        self.detokenizer = Detokenizer(see)
        self.stopping_criteria = Endless()

    def __call__(self, text: str, images: Any = None, **_: Any) -> Any:
        """The inputs of a prompt; the release reads those without images as attributes."""
        inputs = self.inputs[text]
        return dict(inputs) if images else SimpleNamespace(**inputs)


class Detokenizer:
    """Makes no text; the release copies and resets it for each row, as it inserts them."""

    last_segment = text = ""

    def __init__(self, see: See):
        self.see, self.rows = see, itertools.count()
        self.row = self.count = 0

    def reset(self) -> None:
        """Begin the next row's text."""
        self.row, self.count = next(self.rows), 0

    def add_token(self, token: int) -> None:
        """Take a token, which no client has yet."""
        self.count += 1
        self.see(self.row, self.count)

    def finalize(self) -> None:
        """End the text."""
