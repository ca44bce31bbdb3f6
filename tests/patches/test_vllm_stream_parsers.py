"""``vllm-stream-parsers`` on a release: parsers, tool calls, and one stream at a time."""

from __future__ import annotations

import asyncio
import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches.vllm_mlx.vllm_stream_parsers import patch as stream_parsers
from mlx_patches.patches.vllm_mlx.vllm_stream_parsers.probe import (
    REASONING,
    beside,
    deltas,
    parted,
    stream,
)

from ..releases.conftest import is_tested
from ..releases.models import module_or_skip
from .mutants import replaced

pytestmark = pytest.mark.skipif(not is_tested("vllm-mlx"), reason="vllm-mlx is not tested here")

THINKING = REASONING["qwen3"]
# The server looks for a tool call once it has seen "<" or the call's own marker.
CALLS = (
    ["<b>", "[TOOL_CALLS]add", '{"a": 1}'],
    ["<b>", "No", " or", " yes", "[TOOL_CALLS]add", '{"a": 2}'],
)


@pytest.fixture
def server(monkeypatch):
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


def streamed(server, *answers):
    return [deltas(events) for events in asyncio.run(beside(server, answers))]


def indices(events):
    return [call["index"] for delta in events for call in delta.get("tool_calls") or ()]


@pytest.mark.parametrize("name", REASONING)
def test_one_stream_at_a_time_is_as_the_release_has_it(server, monkeypatch, ungated, name):
    reasoning(server, monkeypatch, name)
    alone = [streamed(server, answer) for answer in REASONING[name]]
    ungated("vllm-stream-parsers")
    assert [streamed(server, answer) for answer in REASONING[name]] == alone


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("late", [0, 1, 3])
def test_many_streams_are_as_one(server, monkeypatch, ungated, name, late):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, name)
    answers = [*REASONING[name], [""] * late + REASONING[name][1], REASONING[name][0]]
    alone = [parted(*asyncio.run(beside(server, [answer]))) for answer in answers]
    assert [parted(events) for events in asyncio.run(beside(server, answers))] == alone


def test_the_servers_parser_is_as_before(server, monkeypatch, ungated):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, "qwen3")
    attributes = vars(server._reasoning_parser)
    before = dict(attributes)
    streamed(server, *THINKING)
    assert vars(server._reasoning_parser) is attributes
    assert attributes == before


def test_tool_calls_are_counted_by_stream(tools, ungated):
    ungated("vllm-stream-parsers")
    alone = [indices(*streamed(tools, answer)) for answer in CALLS]
    assert all(set(calls) == {0} for calls in alone)
    tools._tool_parser_instance = None  # the first stream builds it
    assert [indices(events) for events in streamed(tools, *CALLS)] == alone


def test_a_request_that_does_not_stream_leaves_a_stream_alone(tools, ungated):
    ungated("vllm-stream-parsers")
    (alone,) = streamed(tools, CALLS[0])

    async def disturbed():
        events = []
        async for event in stream(tools, CALLS[0]):
            events.append(event)
            tools._parse_tool_calls_with_parser("[TOOL_CALLS]add{}", request())
        return events

    assert indices(deltas(asyncio.run(disturbed()))) == indices(alone) == [0, 0]


def request():
    return SimpleNamespace(model_dump=dict, tool_choice=None, tools=None)


@pytest.mark.parametrize("close", ["cancel", "close"])
def test_a_stream_that_ends_early_leaves_the_other_alone(server, monkeypatch, ungated, close):
    ungated("vllm-stream-parsers")
    reasoning(server, monkeypatch, "qwen3")
    first, second = THINKING

    async def run():
        left, kept = stream(server, first), stream(server, second)
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

    assert parted(asyncio.run(run())) == ("".join(second[1:6]), second[-1])


MUTANTS = {"vllm-stream-parsers": replaced(stream_parsers, new=vars)}
