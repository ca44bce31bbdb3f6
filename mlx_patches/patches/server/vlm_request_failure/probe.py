"""Runs the loop of the server's thread on requests, some of which fail to embed."""

import threading
from collections.abc import Sequence
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....lab.server_thread import Processor, greedy, queue_of
from ....probes.kit import CountingModel, Result, Target, class_of, import_module, mx, require_own

COUNT = 4
# The last token of each prompt: the first is decoded when the others arrive, all at once.
FIRST, OTHERS = 2, (20, 6, 22, 10)
FAILS = (20, 22)
# How often the loop may check for requests.
TURNS = 100


class Queued(Exception):
    """A request is in the queue, where its client would wait."""


class Stuck(BaseException):
    """The loop does not end. The release handles any ``Exception`` itself."""


class Requests(Queue[Any]):
    """A server's queue whose clients do not wait; it ends the loop when it is empty."""

    def __init__(self, server: Any):
        super().__init__()
        self.server, self.turns = server, 0
        self.answers: dict[int, Queue[Any]] = {}

    def send(self, prompt: int) -> None:
        try:
            self.server.generate(str(prompt), args=greedy(self.server, COUNT))
        except Queued:
            self.answers[prompt] = queue_of(self.queue[-1])

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Accept a request, and release its client."""
        super().put(item)
        raise Queued

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next request, without waiting."""
        self.turns += 1
        if self.turns > TURNS:
            raise Stuck
        # The loop waits only if it decodes nothing.
        self.server._stop |= block and self.empty()
        return super().get(block=False)


class Counts(CountingModel):
    """A language model of mlx-vlm."""

    def __call__(self, tokens: Any, cache: Any = None, **kwargs: Any) -> Any:
        logits = super().__call__(tokens)
        return SimpleNamespace(logits=logits, cross_attention_states=None, encoder_outputs=None)


def probe(target: Target) -> Result:
    """Red if one of several requests does not get its own answer or error."""
    require_own(target)
    try:
        answers = serve(class_of(target), FIRST, OTHERS)
    except Stuck:
        return Result(True, "the loop does not end")
    for prompt, answer in answers.items():
        if answer != expect(prompt):
            return Result(True, f"a request gets {answer or 'no answer'}, not {expect(prompt)}")
    return Result(False, "each request gets its own answer, or its own error")


def expect(prompt: int) -> str:
    """The answer to a prompt's request in a solo run."""
    if prompt in FAILS:
        return f"no embeddings of {prompt}"
    return repr([prompt + 1 + step for step in range(COUNT)])


def serve(kind: Any, first: int, others: Sequence[int]) -> dict[int, str]:
    """The answer to each prompt's request: its tokens or its error; "" if there is none."""

    def see(row: int, count: int) -> None:
        if (row, count) == (0, 1):
            for one in others:
                requests.send(one)

    loaded = (
        make_model(),
        Processor(make_inputs([first, *others]), see),
        SimpleNamespace(eos_token_id=None),
    )
    # The server's thread is this one.
    stands = {
        "Thread": lambda **_: SimpleNamespace(start=lambda: None),
        "load_model_resources": lambda *_: loaded,
    }
    with mock.patch.dict(vars(import_module(kind.__module__)), stands):
        server = kind("")
        server._thread = threading.current_thread()
        server._initialize_model()
        server._ready.set()
        server.requests = requests = Requests(server)
        requests.send(first)
        # The caller of _run_impl, since mlx-vlm 0.7, would give up the streams of the thread.
        getattr(server, "_run_impl", server._run)()
    return {prompt: _read_answer(answer) for prompt, answer in requests.answers.items()}


def _read_answer(answer: Queue[Any]) -> str:
    tokens = []
    while not answer.empty():
        one = answer.get()
        if isinstance(one, Exception):
            return str(one)
        if hasattr(one, "token"):
            tokens.append(int(one.token))
    return repr(tokens) if tokens else ""


def make_inputs(prompts: Sequence[int]) -> dict[str, dict[str, Any]]:
    ids = {str(prompt): mx.array([[1, prompt]]) for prompt in prompts}
    return {
        text: {"input_ids": one, "attention_mask": mx.ones_like(one)} for text, one in ids.items()
    }


def make_model() -> Any:
    """A model that fails to embed some prompts."""

    def embeddings(ids: Any, *_: Any, **__: Any) -> Any:
        prompt = int(ids[0, -1].item())
        if prompt in FAILS:
            raise ValueError(expect(prompt))
        return SimpleNamespace(to_dict=lambda: {"inputs_embeds": mx.zeros((*ids.shape, 2))})

    return SimpleNamespace(
        config=SimpleNamespace(model_type="counts"),
        language_model=Counts(),
        get_input_embeddings=embeddings,
    )
