"""vllm-mlx: a streamed /v1/messages answer that max_tokens cuts off reports end_turn.

Why: The stream ends with ``stop_reason: end_turn`` unless it has tool calls: the server does not
    keep the engine's finish reason. Clients take half an answer for a whole one.
How: The stream's engine notes the finish reason, and ``end_turn`` becomes ``max_tokens`` if that is
    ``length``.
Upstream: Not fixed in vllm-mlx 0.6.0.
Retire when: The stream reports the engine's finish reason.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from ....core.verbs import Function, Patch, wrap

_END, _CUT = '"stop_reason": "end_turn"', '"stop_reason": "max_tokens"'


class Noting:
    """An engine that notes the finish reason of its answer."""

    def __init__(self, engine: Any):
        self.engine, self.reason = engine, None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    async def stream_chat(self, *args: Any, **sent: Any) -> AsyncIterator[Any]:
        async with aclosing(self.engine.stream_chat(*args, **sent)) as outputs:
            async for output in outputs:
                self.reason = getattr(output, "finish_reason", None)
                yield output


async def stream(released: Function, engine: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
    """The events of a stream, with the engine's finish reason."""
    noting = Noting(engine)
    async with aclosing(released(noting, *args, **kwargs)) as events:
        async for event in events:
            yield event.replace(_END, _CUT) if noting.reason == "length" else event


PATCH = Patch(
    id="vllm-messages-stop",
    severity="feature",
    targets=wrap("vllm_mlx.server:_stream_anthropic_messages", stream),
)
