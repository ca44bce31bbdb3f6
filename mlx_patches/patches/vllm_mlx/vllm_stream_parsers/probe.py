"""Streams two answers of vllm-mlx's server concurrently, and compares each with its solo run."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from ....probes.kit import Result, Target, require_module

HEAD = ["<|channel|>analysis", "<|message|>"]
FINAL = ["<|end|>", "<|channel|>final", "<|message|>"]
ONE = ["One."]
TWO = ["Two.", " Or", " three.", " No:", " two."]
# A parser, and what two streams receive: the first ends its reasoning before the second.
REASONING = {
    "qwen3": (
        ["<think>", *ONE, "</think>", "It is 1.", " Yes."],
        ["<think>", *TWO, "</think>", "It is 2."],
    ),
    "harmony": (
        [*HEAD, *ONE, *FINAL, "It is 1.", "<|return|>"],
        [*HEAD, *TWO, *FINAL, "It is 2.", "<|return|>"],
    ),
}


def probe(target: Target) -> Result:
    """Red if a stream's reasoning or content depends on a concurrent stream."""
    server = require_module(target.module)
    reasoning = require_module("vllm_mlx.reasoning")
    for name, answers in REASONING.items():
        parser = reasoning.get_parser(name)()
        with mock.patch.multiple(server, _reasoning_parser=parser, _model_name="tiny"):
            solo = [join_deltas(*asyncio.run(run_streams(server, [answer]))) for answer in answers]
            both = [join_deltas(events) for events in asyncio.run(run_streams(server, answers))]
        for seen, wanted in zip(both, solo, strict=True):
            if seen != wanted:
                return Result(True, f"{name}: (reasoning, content) is {seen}, solo {wanted}")
    return Result(False, f"concurrent streams equal solo runs with {', '.join(REASONING)}")


async def run_streams(server: ModuleType, answers: Sequence[Sequence[str]]) -> list[list[str]]:
    """The events of each answer, streamed concurrently: one event of each in turn."""
    streams = [open_stream(server, answer) for answer in answers]
    events: list[list[str]] = [[] for _ in answers]
    running = list(range(len(answers)))
    while running:
        for i in running[:]:
            try:
                events[i].append(await anext(streams[i]))
            except StopAsyncIteration:
                running.remove(i)
    return events


def open_stream(server: ModuleType, answer: Sequence[str]) -> AsyncIterator[str]:
    """The server's own stream of an answer that an engine generates text by text."""

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
            server.ChatCompletionRequest(model="tiny", messages=messages, stream=True),
        ),
        mock.Mock(_is_disconnected=False, is_disconnected=mock.AsyncMock(return_value=False)),
    )


def read_deltas(events: Sequence[str]) -> list[dict[str, Any]]:
    """The part of a message in each server-sent event."""
    data = [event.removeprefix("data: ").strip() for event in events]
    return [json.loads(text)["choices"][0]["delta"] for text in data if text.startswith("{")]


def join_deltas(events: Sequence[str]) -> tuple[str, str]:
    """(reasoning, content) of a stream."""
    reasoning = content = ""
    for delta in read_deltas(events):
        reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
        content += delta.get("content") or ""
    return reasoning, content
