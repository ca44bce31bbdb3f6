"""Generates with vllm-mlx's simple engine; the text of mlx-vlm's outputs comes a token late."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, import_module, require
from ....probes.vllm_engine import open_simple_engine

TEXT = "abc"
_MESSAGES = [{"role": "user", "content": "hi"}]
# The limit of tokens, then the reason for the end of three tokens and a stop token.
_LIMITS = {3: "length", 4: "stop", 9: "stop"}


def probe(target: Target) -> Result:
    """Red if an answer's end, the reason or the number of its tokens is not mlx-vlm's."""
    require(target)
    answer = {"chat": chat, "stream_generate": complete}.get(target.name.rpartition(".")[2], stream)
    with mock.patch.multiple("mlx_vlm", stream_generate=generate_stream, generate=generate):
        for limit, reason in _LIMITS.items():
            # A chat that is not streamed cannot tell a last stop token from another one.
            if (answer, limit) == (chat, 4):
                continue
            got, want = answer(make_model(), limit), (TEXT, reason, min(limit, 4))
            if got != want:
                return Result(True, f"limit {limit}: {got}, not {want}")
    return Result(False, "each answer has its end, the reason and its tokens")


def make_model() -> Any:
    """A model of vllm-mlx that generates with mlx-vlm."""
    model = import_module("vllm_mlx.models.mllm").MLXMultimodalLM("model", enable_cache=False)
    model._loaded = True
    model.processor = SimpleNamespace(
        chat_template="", apply_chat_template=lambda *args, **options: "prompt", encode=list
    )
    return model


def generate_stream(*args: Any, max_tokens: int, **options: Any) -> Iterator[Any]:
    """One output per token, without the text of the last one; then one with the rest."""
    count = min(max_tokens, len(TEXT))
    for number in range(count):
        yield SimpleNamespace(text=TEXT[max(0, number - 1) : number], finish_reason=None)
    reason = "length" if count == max_tokens else "stop"
    tokens = min(max_tokens, len(TEXT) + 1)
    yield SimpleNamespace(text=TEXT[count - 1], finish_reason=reason, generation_tokens=tokens)


def generate(*args: Any, max_tokens: int, **options: Any) -> Any:
    """All of these outputs in one."""
    outputs = list(generate_stream(max_tokens=max_tokens))
    outputs[-1].text = "".join(one.text for one in outputs)
    return outputs[-1]


def chat(model: Any, limit: int) -> tuple[str, str, int]:
    output = model.chat(_MESSAGES, max_tokens=limit)
    return output.text, output.finish_reason, output.completion_tokens


def complete(model: Any, limit: int) -> tuple[str, str, int]:
    """A completion, of which the engine takes as many outputs as tokens."""
    outputs = list(model.stream_generate("hi", max_tokens=limit))[:limit]
    text = "".join(one.text for one in outputs)
    return text, outputs[-1].finish_reason, len(outputs)


def stream(model: Any, limit: int) -> tuple[str, str, int]:
    return asyncio.run(stream_chat(model, limit))


async def stream_chat(model: Any, limit: int) -> tuple[str, str, int]:
    with open_simple_engine() as engine:
        engine._model, engine._loaded, engine._is_mllm = model, True, True
        async with aclosing(engine._stream_chat_impl(_MESSAGES, max_tokens=limit)) as outputs:
            last = [one async for one in outputs][-1]
        if hasattr(engine, "stop"):
            await engine.stop()
    return last.text, last.finish_reason, last.completion_tokens
