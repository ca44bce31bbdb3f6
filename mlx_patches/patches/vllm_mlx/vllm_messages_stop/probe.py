"""Streams an answer of vllm-mlx's ``/v1/messages`` that ends at its limit."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_with
from ....probes.stop_text import PIECES
from ....probes.vllm_engine import make_output


def probe(target: Target) -> Result:
    """Red if a cut answer reports a whole one, or the other way round."""
    server: Any = module_with(target)
    if "prepared" not in inspect.signature(server._stream_anthropic_messages).parameters:
        raise NotApplicable("this release's stream prepares its own request")
    for reason, wanted in (("length", "max_tokens"), ("stop", "end_turn")):
        events = asyncio.run(stream(server, reason))
        if not any(f'"stop_reason": "{wanted}"' in event for event in events):
            return Result(True, f"no {wanted} if the engine's finish reason is {reason}")
    return Result(False, "each finish reason is reported")


async def stream(server: Any, reason: str) -> list[str]:
    async def stream_chat(**_: Any) -> AsyncIterator[Any]:
        for number, piece in enumerate(PIECES, 1):
            output = make_output("", piece, number)
            output.finish_reason = output.finish_reason and reason
            yield output

    engine = SimpleNamespace(stream_chat=stream_chat, tokenizer=None)
    message = server.Message(role="user", content="hi")
    request = server.ChatCompletionRequest(model="m", messages=[message])
    prepared = SimpleNamespace(messages=[], chat_kwargs={})
    stream = server._stream_anthropic_messages
    return [one async for one in stream(engine, request, SimpleNamespace(model="m"), prepared)]
