"""Feeds the server's generator an answer with the stop string in other tokens."""

import dataclasses
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, module_with
from ....probes.stop_text import PIECES, STOP, check_stop


def probe(target: Target) -> Result:
    """Red if the answer goes on after the stop string, or lacks text before it."""
    responses, context = generate_answer(module_with(target), PIECES, [STOP])
    return check_stop((response.text for response in responses), context._should_stop)


def generate_answer(
    module: Any, texts: Iterable[str], stops: Sequence[str]
) -> tuple[list[Any], Any]:
    """The responses to a request whose answer has these texts, and its context.

    The last one ends the answer at its limit.
    """
    context = object.__new__(module.GenerationContext)
    vars(context).update((field.name, None) for field in dataclasses.fields(context))
    context.sequences, context._should_stop = {(0,): ""}, False
    texts = list(texts)
    reasons = [None] * (len(texts) - 1) + ["length"]
    answers = [
        _make_response(module, token, text, reason)
        for token, (text, reason) in enumerate(zip(texts, reasons, strict=True))
    ]

    class Generator(module.ResponseGenerator):  # type: ignore[misc]
        """A generator without its thread."""

        def __init__(self) -> None:
            self.requests = SimpleNamespace(put=self.enqueue)

        def enqueue(self, request: Any) -> None:
            for response in (context, *answers, None):
                request[0].put(response)

        def generation_available(self) -> bool:
            return True

        def _await_response(self, queue: Any) -> Any:
            return queue.get()

    args = SimpleNamespace(stop_words=list(stops))
    found, responses = Generator().generate(None, args)
    return list(responses), found


def _make_response(module: Any, token: int, text: str, reason: str | None) -> Any:
    known = {"text": text, "token": token, "finish_reason": reason, "logprob": 0.0}
    known |= {"state": "normal", "match": None, "top_tokens": ()}
    names = {field.name for field in dataclasses.fields(module.Response)}
    return module.Response(**{name: value for name, value in known.items() if name in names})
