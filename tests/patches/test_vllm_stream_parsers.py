"""``vllm-stream-parsers`` on a release and without one: parsers, tool calls, several streams."""

import asyncio
import gc
import importlib
import sys
import weakref
from types import ModuleType, SimpleNamespace

import pytest

from mlx_patches.patches.vllm_mlx.vllm_stream_parsers import patch as stream_parsers
from mlx_patches.patches.vllm_mlx.vllm_stream_parsers.probe import (
    REASONING,
    join_deltas,
    open_stream,
    read_deltas,
    run_streams,
)

from ..releases.conftest import is_tested
from ..releases.models import module_or_skip

THINKING = REASONING["qwen3"]
# The server looks for a tool call after "<" or the call's own marker.
CALLS = (
    ["<b>", "[TOOL_CALLS]add", '{"a": 1}'],
    ["<b>", "No", " or", " yes", "[TOOL_CALLS]add", '{"a": 2}'],
)


@pytest.fixture
def server(monkeypatch):
    if not is_tested("vllm-mlx"):
        pytest.skip("vllm-mlx is not tested here")
    module = module_or_skip("vllm_mlx.server", "_disconnect_guard", "_reasoning_parser")
    monkeypatch.setattr(module, "_model_name", "tiny")
    return module


@pytest.fixture
def tools(server, monkeypatch):
    """The server with Mistral's tool parser, which counts the calls of an answer."""
    if hasattr(server, "_extract_streaming_tool_delta"):
        pytest.skip("this release builds a tool parser for each stream")
    monkeypatch.setattr(server, "_enable_auto_tool_choice", True)
    monkeypatch.setattr(server, "_tool_call_parser", "mistral")
    monkeypatch.setattr(server, "_tool_parser_instance", None)
    return server


def reasoning(server, monkeypatch, name):
    parsers = importlib.import_module("vllm_mlx.reasoning")
    monkeypatch.setattr(server, "_reasoning_parser", parsers.get_parser(name)())


def stream_answers(server, *answers):
    return [read_deltas(events) for events in asyncio.run(run_streams(server, answers))]


def indices(events):
    return [call["index"] for delta in events for call in delta.get("tool_calls") or ()]


@pytest.mark.parametrize("name", REASONING)
def test_single_stream_equals_release(server, monkeypatch, ungated, name):
    reasoning(server, monkeypatch, name)
    solo = [stream_answers(server, answer) for answer in REASONING[name]]
    ungated("vllm-stream-parsers")
    assert [stream_answers(server, answer) for answer in REASONING[name]] == solo


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("late", [0, 1, 3])
def test_concurrent_streams_equal_single(server, monkeypatch, ungated, name, late):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, name)
    answers = [*REASONING[name], [""] * late + REASONING[name][1], REASONING[name][0]]
    solo = [join_deltas(*asyncio.run(run_streams(server, [answer]))) for answer in answers]
    assert [join_deltas(events) for events in asyncio.run(run_streams(server, answers))] == solo


def test_server_parser_is_unchanged(server, monkeypatch, ungated):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, "qwen3")
    attributes = vars(server._reasoning_parser)
    before = dict(attributes)
    stream_answers(server, *THINKING)
    assert vars(server._reasoning_parser) is attributes
    assert attributes == before


def test_tool_calls_are_counted_per_stream(tools, ungated):
    ungated("vllm-stream-parsers")
    solo = [indices(*stream_answers(tools, answer)) for answer in CALLS]
    assert all(set(calls) == {0} for calls in solo)
    tools._tool_parser_instance = None  # the first stream builds it
    assert [indices(events) for events in stream_answers(tools, *CALLS)] == solo


def test_plain_request_leaves_stream(tools, ungated):
    ungated("vllm-stream-parsers")
    (solo,) = stream_answers(tools, CALLS[0])

    async def read_disturbed_stream():
        events = []
        async for event in open_stream(tools, CALLS[0]):
            events.append(event)
            tools._parse_tool_calls_with_parser("[TOOL_CALLS]add{}", request())
        return events

    assert indices(read_deltas(asyncio.run(read_disturbed_stream()))) == indices(solo) == [0, 0]


def request():
    return SimpleNamespace(model_dump=dict, tool_choice=None, tools=None)


@pytest.mark.parametrize("close", ["cancel", "close"])
def test_ended_stream_leaves_other(server, monkeypatch, ungated, close):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, "qwen3")
    first, second = THINKING

    async def run():
        left, kept = open_stream(server, first), open_stream(server, second)
        events = [await anext(kept), await anext(kept)]
        for _ in range(3):
            await anext(left)
        if close == "close":
            await left.aclose()
        else:
            step = asyncio.ensure_future(anext(left))
            await asyncio.sleep(0)
            step.cancel()
            await asyncio.wait([step])
        return events + [event async for event in kept]

    assert join_deltas(asyncio.run(run())) == ("".join(second[1:6]), second[-1])


# -- without a release


class Parser:
    def __init__(self):
        self.seen = []

    def reset(self):
        self.seen = []

    def feed(self, text):
        self.seen.append(text)
        return len(self.seen)


class ToolParser(Parser):
    def __init__(self, tokenizer):
        super().__init__()
        self.model_tokenizer = tokenizer


class NamedParser(Parser):
    """Cannot be built as the server builds a parser."""

    def __init__(self, *, name):
        super().__init__()
        self.name = name


class WaitError(Exception):
    pass


@pytest.fixture
def module(monkeypatch):
    """A server's module without a release, with a parser that counts."""
    made = ModuleType("vllm_mlx.server")
    made._reasoning_parser = Parser()
    made._tool_parser_instance = None
    monkeypatch.setitem(sys.modules, "vllm_mlx", ModuleType("vllm_mlx"))
    monkeypatch.setitem(sys.modules, "vllm_mlx.server", made)
    return made


async def feed(module, text, name="_reasoning_parser"):
    parser = getattr(module, name)
    parser.reset()
    for letter in text:
        await asyncio.sleep(0)
        yield parser.feed(letter)


async def read_all(events):
    """All events; each step is a separate task, as in the server."""
    got = []
    while True:
        try:
            got.append(await asyncio.ensure_future(anext(events)))
        except StopAsyncIteration:
            return got


async def side_by_side(*streams):
    return await asyncio.gather(*map(read_all, streams))


def test_streams_share_parser_without_patch(module):
    shared = asyncio.run(side_by_side(feed(module, "ab"), feed(module, "abc")))
    assert shared != [[1, 2], [1, 2, 3]]


@pytest.mark.parametrize("parser", [Parser(), ToolParser("tokenizer")], ids=["plain", "tokenizer"])
def test_streams_have_own_state(module, parser):
    module._reasoning_parser = parser
    streams = [stream_parsers.separate_parsers(feed(module, text)) for text in ("ab", "abc", "a")]
    assert asyncio.run(side_by_side(*streams)) == [[1, 2], [1, 2, 3], [1]]


def test_server_has_own_state_while_stream_waits(module):
    parser = module._reasoning_parser
    attributes = vars(parser)
    parser.feed("x")

    async def run():
        events = stream_parsers.separate_parsers(feed(module, "ab"))
        assert await anext(events) == 1
        assert vars(parser) is attributes
        assert parser.feed("y") == 2
        parser.reset()
        assert await anext(events) == 2
        await events.aclose()

    asyncio.run(run())
    assert vars(parser) is attributes
    assert parser.seen == []


def test_parser_built_by_stream_is_not_shared(module):
    async def building(text):
        if module._tool_parser_instance is None:
            module._tool_parser_instance = ToolParser("tokenizer")
        async for event in feed(module, text, "_tool_parser_instance"):
            yield event

    streams = [stream_parsers.separate_parsers(building(text)) for text in ("ab", "abc")]
    assert asyncio.run(side_by_side(*streams)) == [[1, 2], [1, 2, 3]]
    assert module._tool_parser_instance.seen == []


def test_stream_keeps_dropped_parser(module):
    async def run():
        events = stream_parsers.separate_parsers(feed(module, "abc"))
        got = [await anext(events)]
        module._reasoning_parser = Parser()
        return got + [event async for event in events]

    assert asyncio.run(run()) == [1, 2, 3]


def test_unbuildable_parser_is_shared(module):
    module._reasoning_parser = parser = NamedParser(name="n")
    assert asyncio.run(read_all(stream_parsers.separate_parsers(feed(module, "ab")))) == [1, 2]
    assert parser.seen == ["a", "b"]


def test_other_attributes_are_kept(module):
    module._reasoning_parser.vocabulary = vocabulary = {"a": 1}
    assert stream_parsers.build_attributes(module._reasoning_parser) == {
        "seen": [],
        "vocabulary": vocabulary,
    }


def test_errors_reach_stream_and_reader(module):
    caught = []

    async def failing():
        try:
            yield module._reasoning_parser.feed("a")
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError as error:
            caught.append(error)
            raise WaitError from error

    attributes = vars(module._reasoning_parser)

    async def run():
        events = stream_parsers.separate_parsers(failing())
        assert await anext(events) == 1
        with pytest.raises(WaitError):
            await anext(events)
        assert await anext(events, None) is None

    asyncio.run(run())
    assert caught
    assert vars(module._reasoning_parser) is attributes


def test_cancelled_step_ends_stream(module):
    ended = []

    async def waiting():
        try:
            module._reasoning_parser.feed("a")
            await asyncio.Event().wait()
            yield
        finally:
            ended.append(list(module._reasoning_parser.seen))

    async def run():
        events = stream_parsers.separate_parsers(waiting())
        step = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step

    asyncio.run(run())
    assert ended == [["a"]]
    assert module._reasoning_parser.seen == []


@pytest.mark.parametrize("end", ["read", "close", "error"])
def test_stream_leaves_nothing(module, end):
    """Without the cycle collector: attributes of a stream are gone when it is."""
    kept = []

    class Attributes(list):
        """A list that can be referenced weakly."""

    async def one():
        module._reasoning_parser.seen = Attributes()
        kept.append(weakref.ref(module._reasoning_parser.seen))
        yield 1
        if end == "error":
            await asyncio.sleep(0)
            raise WaitError
        yield 2

    async def run():
        events = stream_parsers.separate_parsers(one())
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
