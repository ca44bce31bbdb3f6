"""Gives the server's generator an answer that has the stop string of a chat request."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result

PIECES = ("one, ", "two, EN", "D, three", " and on")
STOP = "END"


def probe(target: Target) -> Result:
    """Red where the answer goes on after the stop string, or the text before it is not whole."""
    module, name = importlib.import_module(target.module), target.name.partition(".")[0]
    if getattr(getattr(module, name, None), "__module__", "") != target.module:
        raise NotApplicable(f"this release does not define {name} there")
    tokens, cancelled = answer(PIECES, stop=STOP)
    said = "".join(token.text for token in tokens)
    if said != "one, two, ":
        return Result(True, f"{PIECES} with the stop string {STOP!r} becomes {said!r}")
    if not cancelled:
        return Result(True, "the generation goes on after the stop string")
    return Result(False, f"the answer ends with {said!r}")


def answer(pieces: Iterable[str], **sent: Any) -> tuple[list[Any], list[Any]]:
    """The tokens of the answer to a chat request, and the rows that were cancelled.

    Args:
        pieces: the text of each token; the last one ends the answer by its length.
        sent: further fields of the request.
    """
    server: Any = importlib.import_module("mlx_vlm.server")
    generator = silent(pieces)
    messages = [{"role": "user", "content": "hi"}]
    request = server.ChatRequest.model_validate({"model": "m", "messages": messages, **sent})
    _, tokens = generator.generate("hi", args=server._build_gen_args(request))
    return list(tokens), generator.cancelled


def silent(pieces: Iterable[str]) -> Any:
    """A generator without its thread, which answers every request in these pieces."""
    server: Any = importlib.import_module("mlx_vlm.server")
    pieces = list(pieces)
    reasons = [None] * (len(pieces) - 1) + ["length"]
    tokens = [
        server.StreamingToken(text=text, token=number, logprobs=0.0, finish_reason=reason)
        for number, (text, reason) in enumerate(zip(pieces, reasons, strict=True))
    ]

    class Generator(server.ResponseGenerator):  # type: ignore[misc]
        def __init__(self) -> None:
            self.draft_model = self.tokenizer = self.processor = None
            self.requests = SimpleNamespace(put=self.respond)
            self.cancelled: list[Any] = []

        def wait_until_ready(self, timeout: float | None = None) -> None:
            pass

        def _cpu_preprocess(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
            import mlx.core as mx

            return {"input_ids": mx.array([[1, 2]])}

        def _cancel(self, uid: Any) -> None:
            self.cancelled.append(uid)

        def respond(self, request: Any) -> None:
            queue = request[0] if isinstance(request, tuple) else request.rqueue
            for one in (server.GenerationContext(uid=7, prompt_tokens=2), *tokens, None):
                queue.put(one)

    return Generator()
