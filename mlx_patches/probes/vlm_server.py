"""mlx-vlm's server without a model, for probes of how it handles an answer."""

import importlib
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any


def make_silent_generator(chunks: Iterable[str]) -> Any:
    """A generator without its thread; it answers every request with these text segments."""
    server: Any = importlib.import_module("mlx_vlm.server")
    chunks = list(chunks)
    reasons = [None] * (len(chunks) - 1) + ["length"]
    tokens = [
        server.StreamingToken(text=text, token=number, logprobs=0.0, finish_reason=reason)
        for number, (text, reason) in enumerate(zip(chunks, reasons, strict=True))
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
