"""Generates with vllm-mlx's simple engine, streamed or not, up to several limits of tokens."""

import asyncio
from contextlib import aclosing
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, require
from ....probes.vllm_engine import open_simple_engine
from ....probes.vllm_media import (
    MESSAGES,
    TEXT,
    chat,
    complete,
    generate,
    generate_stream,
    make_model,
)

# The limit of tokens, then the reason for the end of three tokens and a stop token.
_LIMITS = {3: "length", 4: "stop", 9: "stop"}


def probe(target: Target) -> Result:
    """Red if an answer's end, the reason or the number of its tokens is not mlx-vlm's."""
    require(target)
    answer = {"chat": chat, "stream_generate": complete}.get(target.name.rpartition(".")[2], stream)
    with mock.patch.multiple("mlx_vlm", stream_generate=generate_stream, generate=generate):
        for limit, reason in _LIMITS.items():
            # Without a stream, the engine drops the reason of a last stop token.
            if (answer, limit) == (chat, 4):
                continue
            got, want = answer(make_model(), limit), (TEXT, reason, min(limit, 4))
            if got != want:
                return Result(True, f"limit {limit}: {got}, not {want}")
    return Result(False, "each answer has its end, the reason and its tokens")


def stream(model: Any, limit: int) -> tuple[str, str, int]:
    return asyncio.run(stream_chat(model, limit))


async def stream_chat(model: Any, limit: int) -> tuple[str, str, int]:
    with open_simple_engine() as engine:
        engine._model, engine._loaded, engine._is_mllm = model, True, True
        async with aclosing(engine._stream_chat_impl(MESSAGES, max_tokens=limit)) as outputs:
            last = [one async for one in outputs][-1]
        if hasattr(engine, "stop"):
            await engine.stop()
    return last.text, last.finish_reason, last.completion_tokens
