"""``vllm-stream-parsers`` without a release: a server's module with a parser that counts."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from types import ModuleType

import pytest

from mlx_patches.patches.vllm_mlx.vllm_stream_parsers import patch as stream_parsers
from mlx_patches.patches.vllm_mlx.vllm_stream_parsers.patch import with_own_parsers


class Parser:
    """Counts what it is given since the last reset."""

    def __init__(self):
        self.seen = []

    def reset(self):
        self.seen = []

    def feed(self, text):
        self.seen.append(text)
        return len(self.seen)


class ToolParser(Parser):
    """Is built with a tokenizer."""

    def __init__(self, tokenizer):
        super().__init__()
        self.model_tokenizer = tokenizer


class NamedParser(Parser):
    """Cannot be built as the server builds a parser."""

    def __init__(self, *, name):
        super().__init__()
        self.name = name


class WaitError(Exception):
    """What a stream waits for fails."""


@pytest.fixture
def server(monkeypatch):
    module = ModuleType("vllm_mlx.server")
    module._reasoning_parser = Parser()
    module._tool_parser_instance = None
    monkeypatch.setitem(sys.modules, "vllm_mlx", ModuleType("vllm_mlx"))
    monkeypatch.setitem(sys.modules, "vllm_mlx.server", module)
    return module


async def stream(server, text, name="_reasoning_parser"):
    parser = getattr(server, name)
    parser.reset()
    for letter in text:
        await asyncio.sleep(0)
        yield parser.feed(letter)


async def read(events):
    """All events; each step is a task of its own, as in the server."""
    got = []
    while True:
        try:
            got.append(await asyncio.ensure_future(anext(events)))
        except StopAsyncIteration:
            return got


async def beside(*streams):
    return await asyncio.gather(*map(read, streams))


def test_streams_share_a_parser_without_the_patch(server):
    shared = asyncio.run(beside(stream(server, "ab"), stream(server, "abc")))
    assert shared != [[1, 2], [1, 2, 3]]


@pytest.mark.parametrize("parser", [Parser(), ToolParser("tokenizer")], ids=["plain", "tokenizer"])
def test_each_stream_has_its_own_state(server, parser):
    server._reasoning_parser = parser
    streams = [with_own_parsers(stream(server, text)) for text in ("ab", "abc", "a")]
    assert asyncio.run(beside(*streams)) == [[1, 2], [1, 2, 3], [1]]


def test_the_server_has_its_own_state_while_a_stream_waits(server):
    parser = server._reasoning_parser
    attributes = vars(parser)
    parser.feed("x")

    async def run():
        events = with_own_parsers(stream(server, "ab"))
        assert await anext(events) == 1
        assert vars(parser) is attributes
        assert parser.feed("y") == 2
        parser.reset()
        assert await anext(events) == 2
        await events.aclose()

    asyncio.run(run())
    assert vars(parser) is attributes
    assert parser.seen == []


def test_a_parser_that_a_stream_builds_is_not_shared_either(server):
    async def building(text):
        if server._tool_parser_instance is None:
            server._tool_parser_instance = ToolParser("tokenizer")
        async for event in stream(server, text, "_tool_parser_instance"):
            yield event

    streams = [with_own_parsers(building(text)) for text in ("ab", "abc")]
    assert asyncio.run(beside(*streams)) == [[1, 2], [1, 2, 3]]
    assert server._tool_parser_instance.seen == []


def test_a_stream_keeps_a_parser_that_the_server_drops(server):
    async def run():
        events = with_own_parsers(stream(server, "abc"))
        got = [await anext(events)]
        server._reasoning_parser = Parser()
        return got + [event async for event in events]

    assert asyncio.run(run()) == [1, 2, 3]


def test_a_parser_that_cannot_be_built_again_stays_shared(server):
    server._reasoning_parser = parser = NamedParser(name="n")
    assert asyncio.run(read(with_own_parsers(stream(server, "ab")))) == [1, 2]
    assert parser.seen == ["a", "b"]


def test_what_a_constructor_does_not_set_is_kept(server):
    server._reasoning_parser.vocabulary = vocabulary = {"a": 1}
    assert stream_parsers.new(server._reasoning_parser) == {"seen": [], "vocabulary": vocabulary}


def test_errors_reach_the_stream_and_its_reader(server):
    caught = []

    async def failing():
        try:
            yield server._reasoning_parser.feed("a")
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError as error:
            caught.append(error)
            raise WaitError from error

    attributes = vars(server._reasoning_parser)

    async def run():
        events = with_own_parsers(failing())
        assert await anext(events) == 1
        with pytest.raises(WaitError):
            await anext(events)
        assert await anext(events, None) is None

    asyncio.run(run())
    assert caught
    assert vars(server._reasoning_parser) is attributes


def test_a_cancelled_step_ends_the_stream(server):
    ended = []

    async def waiting():
        try:
            server._reasoning_parser.feed("a")
            await asyncio.Event().wait()
            yield
        finally:
            ended.append(list(server._reasoning_parser.seen))

    async def run():
        events = with_own_parsers(waiting())
        step = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    asyncio.run(run())
    assert ended == [["a"]]
    assert server._reasoning_parser.seen == []


def test_closing_closes_the_stream(server):
    ended = []

    async def endless():
        try:
            while True:
                yield 1
        finally:
            ended.append(True)

    async def run():
        events = with_own_parsers(endless())
        await anext(events)
        await events.aclose()

    asyncio.run(run())
    assert ended == [True]


@pytest.mark.parametrize("end", ["read", "close", "error"])
def test_nothing_is_left_after_a_stream(server, end):
    """Without the cycle collector: attributes of a stream are gone when it is."""
    kept = []

    class Attributes(list):
        """A list that can be referenced weakly."""

    async def one():
        server._reasoning_parser.seen = Attributes()
        kept.append(weakref.ref(server._reasoning_parser.seen))
        yield 1
        if end == "error":
            await asyncio.sleep(0)
            raise WaitError
        yield 2

    async def run():
        events = with_own_parsers(one())
        if end == "close":
            await anext(events)
            await events.aclose()
        try:
            async for _ in events:
                pass
        except WaitError:
            assert end == "error"
        del events
        return kept[0]()

    enabled = gc.isenabled()
    gc.disable()
    try:
        assert asyncio.run(run()) is None
    finally:
        if enabled:
            gc.enable()
