"""A stream's reasoning arrives as content, because another stream's reasoning has ended.

Why
    Up to 0.4.0 the server has one reasoning parser and one tool parser. Each stream resets them and
    feeds them its own text, so streams that run at the same time share their state: where one
    closes its ``<think>`` block, the rest of the other's reasoning is content. Tool calls are
    counted across streams, and a request that does not stream resets the tool parser of those
    that do.
How
    Whenever a stream runs, the server's parsers have that stream's attributes; while it waits, they
    have the server's. A stream's first attributes are those of a newly built parser. The
    server runs each step of a stream in a task of its own, so the task cannot tell streams apart.
Upstream
    vllm-mlx 0.4.1 builds parsers for each request (#649, #652, #654).
Retire when
    vllm-mlx below 0.4.1 is no longer supported.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Generator, Iterator
from copy import copy
from functools import partial
from types import coroutine
from typing import Any

from ....core.patch import Patch, Target, around

PARSERS = ("_reasoning_parser", "_tool_parser_instance")

# A parser to its attributes.
States = dict[Any, dict[str, Any]]


async def with_own_parsers(stream: Any) -> AsyncIterator[Any]:
    """Yield what an async generator yields; the server's parsers are its own whenever it runs."""
    own: States = {}
    try:
        while True:
            try:
                item = await stepped(stream.__anext__().__await__(), own)
            except StopAsyncIteration:
                return
            yield item
    finally:
        await stream.aclose()


@coroutine
def stepped(step: Any, own: States) -> Generator[Any, Any, Any]:
    """Await one step of a stream.

    A step waits and runs in turns, and other streams run while it waits. So the parsers get the
    stream's attributes before each turn, and the server's after it.
    """
    resume = partial(step.send, None)
    while True:
        servers = exchanged(own)
        try:
            awaited = resume()
        except StopIteration as done:
            return done.value
        finally:
            own.update(exchanged(servers))
            del resume  # an error that it throws would refer to itself
        try:
            resume = partial(step.send, (yield awaited))
        except BaseException as error:
            resume = partial(step.throw, error)
        del awaited


def exchanged(states: States) -> States:
    """Give the parsers these attributes, or those of a new parser; return what they had."""
    had = {}
    for parser in dict.fromkeys([*states, *parsers()]):
        had[parser] = vars(parser)
        parser.__dict__ = states[parser] if parser in states else new(parser)
    return had


def parsers() -> Iterator[Any]:
    """The parsers that the server shares between streams."""
    server = vars(importlib.import_module("vllm_mlx.server"))
    return (server[name] for name in PARSERS if server.get(name) is not None)


def new(parser: Any) -> dict[str, Any]:
    """The attributes of a new parser that is built as the server builds it.

    It keeps what a constructor does not set, such as a vocabulary that is already read. A parser
    whose constructor asks for more stays shared.
    """
    built = copy(parser)
    tokenizer = (parser.model_tokenizer,) if hasattr(parser, "model_tokenizer") else ()
    try:
        type(built).__init__(built, *tokenizer)
    except TypeError:
        built = parser
    attributes: dict[str, Any] = vars(built)
    return attributes


PATCH = Patch(
    id="vllm-stream-parsers",
    every_model=True,
    summary="vllm-mlx: concurrent streams mix up reasoning and content",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.server",
            "_disconnect_guard",
            around(
                lambda guard, generator, *args, **kwargs: guard(
                    with_own_parsers(generator), *args, **kwargs
                )
            ),
            fingerprint_of=("stream_chat_completion",),
        ),
    ),
)
