"""Requests through the running generator of mlx-vlm's server, in its own thread.

The model is a tiny whole one, and the processor returns prepared inputs. Everything else is the
release's: the queue, the embedding step, the insertion, the steps, the returned tokens, and the
handling of clients that disconnect. There is no HTTP, and no file is loaded.
"""

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

from ..core.arrays import mx
from ..evidence.results import NotApplicable, import_optional
from . import Generated
from .generators import Endless, read_answer
from .shrink import VOCABULARY
from .whole import Inputs, Prompt, Whole

# Seconds within which all answers have to come; they take less than one.
SECONDS = 10.0
# Called with a row and its number of tokens.
See = Callable[[int, int], None]


def response_generator() -> Any:
    """The class that batches the requests of the release's server."""
    for name in ("mlx_vlm.server.generation", "mlx_vlm.server"):
        kind = getattr(import_optional(name), "ResponseGenerator", None)
        if hasattr(kind, "_gpu_embed"):
            return kind
    raise NotApplicable("the release's server does not batch prompts with images")


def serve(build: Callable[[], Whole], prompts: Sequence[Prompt]) -> list[list[Generated]]:
    """Return the tokens that the clients of this model's running generator get, by prompt.

    The first prompt starts without the others, and its tokens count the steps: the others arrive
    while it is decoded, all prompts of one step at once. Raises the first failed client's error.
    """
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
def running(kind: Any, build: Callable[[], Whole], processor: "Processor") -> Iterator[Any]:
    """Run a release's generator, whose thread ends with the context."""
    import mlx.core as mx

    def load(*_: Any) -> tuple[Any, Processor, Any]:
        # Runs in the generator's thread, like a release's loader: lazy arrays are bound to it.
        # MLX 0.31 ends the process when a thread ends that ran only functions compiled by other
        # threads (mlx #3619); compiling one in this thread prevents that.
        mx.compile(abs)
        # There is no stop token, so the config names none.
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
    """The clients of a generator: when each arrives and disconnects."""

    def __init__(self, prompts: Sequence[Prompt]):
        self.prompts = prompts
        self.all: list[Client] = []
        self.asked: list[Any] = []
        self.generator: Any = None
        self.end = 0.0

    def answers(self, generator: Any, texts: Sequence[str]) -> list[list[Generated]]:
        """Request the prompts, which have these texts; returns what each client got."""
        self.generator, self.end = generator, time.monotonic() + SECONDS
        pairs = zip(texts, self.prompts, strict=True)
        self.all = [Client(generator, text, one) for text, one in pairs]
        put = generator.requests.put

        def note(request: Any) -> None:
            self.asked.append(request)
            put(request)

        generator.requests.put = note
        self.all[0].start()
        self._until(
            lambda: any(one.error for one in self.all) or all(map(Client.has_left, self.all))
        )
        for error in (one.error for one in self.all if one.error):
            raise error
        return [one.output for one in self.all]

    def see(self, row: int, count: int) -> None:
        """Hold the generator's thread at a row's token until all due clients arrived or left."""
        for client in self.all[1:] if row == 0 else ():
            if client.prompt.turn == count - 1:
                self._comes(client)
        client = self.all[row]
        if client.prompt.leaves and count > client.prompt.count:
            self._until(client.has_left)

    def dismiss(self) -> None:
        """End the waiting clients: a release forgets some when another's request fails."""
        for request in filter(None, self.asked):
            queue_of(request).put(RuntimeError("the server has stopped"))
        for client in self.all:
            if client.ident is not None:
                client.join(1)

    def _comes(self, client: "Client") -> None:
        # The thread that reads the queue is held, so the queue grows.
        before = self.generator.requests.qsize()
        client.start()
        self._until(lambda: self.generator.requests.qsize() > before or client.has_left())

    def _until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            if time.monotonic() > self.end:
                counts = ", ".join(f"{len(one.output)} of {one.prompt.count}" for one in self.all)
                raise TimeoutError(f"no answer in {SECONDS:g} s; tokens by row: {counts}")
            time.sleep(0.001)


def queue_of(request: Any) -> Any:
    return request[0] if isinstance(request, tuple) else request.rqueue


class Client(threading.Thread):
    """A client of a generator that may disconnect before the answer ends."""

    def __init__(self, generator: Any, text: str, prompt: Prompt):
        super().__init__(daemon=True)
        self.generator, self.text, self.prompt = generator, text, prompt
        self.output: list[Generated] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Send the request and collect the answer."""
        try:
            # The release does not load an image that is not a string.
            images = [self.text.encode()] if self.prompt.shown else None
            arguments = greedy(self.generator, self.prompt.asked)
            _, answers = self.generator.generate(self.text, images, args=arguments)
            with contextlib.closing(answers):
                for one in answers:
                    self.output.append(token_of(one))
                    if self.prompt.leaves and len(self.output) == self.prompt.count:
                        return
        except Exception as error:
            self.error = error

    def has_left(self) -> bool:
        return self.ident is not None and not self.is_alive()


def greedy(generator: Any, count: int) -> Any:
    """Arguments of a greedy request for this many tokens, with log-probabilities."""
    kind = importlib.import_module(type(generator).__module__).GenerationArguments
    wanted = {"max_tokens": count, "temperature": 0.0, "logprobs": True}
    known = {one.name for one in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in known})


def token_of(answer: Any) -> Generated:
    return read_answer(
        SimpleNamespace(
            token=answer.token, token_logprob=answer.logprobs, top_logprobs=answer.top_logprobs
        )
    )


class Processor:
    """A processor that maps each text to prepared inputs; there is no stop token."""

    chat_template = None
    pad_token = ""

    def __init__(self, inputs: Mapping[str, Inputs], see: See):
        self.inputs = inputs
        self.detokenizer = Detokenizer(see)
        self.stopping_criteria = Endless()

    def __call__(self, text: str, images: Any = None, **_: Any) -> Any:
        """Return a prompt's inputs; the release reads those without images as attributes."""
        inputs = self.inputs[text]
        return dict(inputs) if images else SimpleNamespace(**inputs)


class Detokenizer:
    """Returns no text; the release copies and resets it for each inserted row."""

    last_segment = text = ""

    def __init__(self, see: See):
        self.see, self.rows = see, itertools.count()
        self.row = self.count = 0

    def reset(self) -> None:
        self.row, self.count = next(self.rows), 0

    def add_token(self, token: int) -> None:
        """Report a token, before any client gets it."""
        self.count += 1
        self.see(self.row, self.count)

    def finalize(self) -> None:
        """End the text."""
