"""Streams two answers of vllm-mlx's server at the same time, and compares them with one alone."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from ..core.patch import Target
from . import NotApplicable, Result

# A parser, and what two streams receive: the first has ended its reasoning before the second.
REASONING = {
    "qwen3": (
        ["<think>", "One.", "</think>", "It is 1.", " Yes."],
        ["<think>", "Two.", " Or three.", " No: two.", "</think>", "It is 2."],
    ),
    "harmony": (
        ["<|channel|>analysis", "<|message|>", "One.", "<|end|>"]
        + ["<|channel|>final", "<|message|>", "It is 1.", "<|return|>"],
        ["<|channel|>analysis", "<|message|>", "Two.", " Or", " three.", " No:", " two.", "<|end|>"]
        + ["<|channel|>final", "<|message|>", "It is 2.", "<|return|>"],
    ),
}  # fmt: skip
# (reasoning, content)
Delta = tuple[str, str]


def probe(target: Target) -> Result:
    """Red where a stream's reasoning or content depends on the stream beside it."""
    try:
        server = importlib.import_module(target.module)
        reasoning = importlib.import_module("vllm_mlx.reasoning")
    except ImportError as error:
        raise NotApplicable(f"this release has no reasoning parsers: {error}") from error
    for name, answers in REASONING.items():
        parser = reasoning.get_parser(name)()
        with mock.patch.multiple(server, _reasoning_parser=parser, _model_name="tiny"):
            alone = [asyncio.run(beside(server, [answer]))[0] for answer in answers]
            both = asyncio.run(beside(server, answers))
        if both != alone:
            wrong = next(i for i in range(len(alone)) if both[i] != alone[i])
            return Result(
                True, f"{name}: (reasoning, content) is {both[wrong]}, alone {alone[wrong]}"
            )
    return Result(False, f"streams side by side are as alone with {', '.join(REASONING)}")


async def beside(server: ModuleType, answers: Sequence[Sequence[str]]) -> list[Delta]:
    """(reasoning, content) of each answer, streamed in turns: a piece of each, then the next."""
    streams = [stream(server, answer) for answer in answers]
    texts = [("", "")] * len(answers)
    running = set(range(len(answers)))
    while running:
        for i in sorted(running):
            try:
                chunk = await anext(streams[i])
            except StopAsyncIteration:
                running.remove(i)
                continue
            reasoning, content = delta(chunk)
            texts[i] = texts[i][0] + reasoning, texts[i][1] + content
    return texts


def stream(server: ModuleType, answer: Sequence[str], **request: Any) -> AsyncIterator[str]:
    """The server's own stream of an answer that an engine generates piece by piece."""

    async def stream_chat(**_: Any) -> AsyncIterator[Any]:
        for i, text in enumerate(answer):
            await asyncio.sleep(0)
            end = i == len(answer) - 1
            yield SimpleNamespace(
                text="".join(answer[: i + 1]),
                new_text=text,
                finished=end,
                finish_reason="stop" if end else None,
                prompt_tokens=1,
                completion_tokens=i + 1,
            )

    messages = [{"role": "user", "content": "How many?"}]
    return server._disconnect_guard(  # type: ignore[no-any-return]
        server.stream_chat_completion(
            SimpleNamespace(model_name="tiny", tokenizer=None, stream_chat=stream_chat),
            messages,
            server.ChatCompletionRequest(model="tiny", messages=messages, stream=True, **request),
        ),
        mock.Mock(_is_disconnected=False, is_disconnected=mock.AsyncMock(return_value=False)),
    )


def delta(chunk: str) -> Delta:
    """(reasoning, content) of a server-sent event."""
    data = chunk.removeprefix("data: ").strip()
    if not data.startswith("{"):
        return "", ""
    (choice,) = json.loads(data)["choices"]
    part = choice["delta"]
    reasoning = part.get("reasoning_content") or part.get("reasoning") or ""
    return reasoning, part.get("content") or ""
