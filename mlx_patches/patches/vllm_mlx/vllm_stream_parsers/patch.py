"""vllm-mlx: concurrent streams mix up reasoning and content.

Why: Up to 0.4.0 the server has one reasoning parser and one tool parser. Each stream resets them
    and feeds them its own text, so concurrent streams share their state: when one closes its
    ``<think>`` block, the rest of the other's reasoning becomes content. Tool calls are counted
    across streams, and a request without streaming resets the tool parser of the streams.
How: While a stream runs, the server's parsers have that stream's attributes; while it waits, they
    have the server's. A stream starts with the attributes of a newly built parser. The server runs
    each step of a stream in a separate task, so a context variable could not separate streams.
Upstream: vllm-mlx 0.4.1 builds parsers for each request (#649, #652, #654).
Retire when: vllm-mlx below 0.4.1 is no longer supported.
"""

import importlib
from collections.abc import AsyncIterator, Generator
from copy import copy
from functools import partial
from types import coroutine
from typing import Any

from ....core.verbs import Patch, argument

PARSERS = ("_reasoning_parser", "_tool_parser_instance")

# A parser to its attributes.
States = dict[Any, dict[str, Any]]


async def separate_parsers(generator: Any) -> AsyncIterator[Any]:
    """Yield a stream's items; whenever it runs, the server's parsers have its attributes."""
    own: States = {}
    try:
        while True:
            try:
                item = await run_step(generator.__anext__().__await__(), own)
            except StopAsyncIteration:
                return
            yield item
    finally:
        await generator.aclose()


@coroutine
def run_step(step: Any, own: States) -> Generator[Any, Any, Any]:
    """Await one step of a stream.

    A step alternates between running and waiting, and other streams run while it waits. So the
    parsers get the stream's attributes before each run, and the server's after it.
    """
    resume = partial(step.send, None)
    while True:
        servers = swap_attributes(own)
        try:
            awaited = resume()
        except StopIteration as done:
            return done.value
        finally:
            own.update(swap_attributes(servers))
            del resume  # an error that it throws would refer to itself
        try:
            resume = partial(step.send, (yield awaited))
        except BaseException as error:
            resume = partial(step.throw, error)
        del awaited


def swap_attributes(states: States) -> States:
    """Give the parsers these attributes, or those of a new parser; returns the previous ones."""
    server, had = vars(importlib.import_module("vllm_mlx.server")), {}
    shared = [server[name] for name in PARSERS if server.get(name) is not None]
    for parser in dict.fromkeys([*states, *shared]):
        had[parser] = vars(parser)
        parser.__dict__ = states[parser] if parser in states else build_attributes(parser)
    return had


def build_attributes(parser: Any) -> dict[str, Any]:
    """The attributes of a parser that is built as the server builds it.

    It keeps what a constructor does not set, such as a vocabulary that was already read. A parser
    whose constructor requires more arguments stays shared.
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
    targets=argument(
        "vllm_mlx.server:_disconnect_guard",
        "generator",
        separate_parsers,
        fingerprint_of=("stream_chat_completion",),
    ),
)
