"""mlx-openai-server's answers: stop strings, seeds, calls and finish reasons."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.openai_server_answers import patch
from mlx_patches.patches.server.openai_server_answers.probe import make_chunks

pytestmark = pytest.mark.skipif(not source_file("app.handler.mlx_lm"), reason="no such server")


def take(stops):
    """The text of an answer, and the finish reason that its context has."""
    context = SimpleNamespace()

    async def read():
        return "".join([one.text async for one in patch.watch(make_chunks([]), context, stops)])

    return asyncio.run(read()), vars(context)[patch._REASON]


def test_answer_ends_at_first_stop_string():
    assert take(["END"]) == ("one, two, ", "stop")
    assert take(["never", "d on"]) == ("one, two, END, three an", "stop")
    assert take([]) == ("one, two, END, three and on", "length")
    assert take(["on, "]) == ("one, two, END, three and on", "length")


def test_only_a_seeded_request_has_a_seeded_sampler():
    sampler = object()
    assert patch.add_seed(sampler, {"seed": None}) is patch.add_seed(sampler, {}) is sampler
    assert patch.add_seed(sampler, {"seed": 0}).seed == 0


@pytest.mark.parametrize("text", ["<tool_call>{oops</tool_call>", "text", ""])
def test_unread_call_is_text(text):
    from app.parsers import ParserManager

    parsers = patch.read_unread_calls(ParserManager.create_parsers("qwen3", "hermes"))
    assert parsers.tool_parser.extract_tool_calls(text)["content"] == text


def test_read_call_is_a_call():
    from app.parsers import ParserManager

    parsers = patch.read_unread_calls(ParserManager.create_parsers(None, "hermes"))
    text = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
    (call,) = parsers.tool_parser.extract_tool_calls(text)["tool_calls"]
    assert call["name"] == "f"


def test_required_call_is_checked():
    for choice in ("required", SimpleNamespace()):
        request = SimpleNamespace(tools=[1], tool_choice=choice)
        patch.check_call(request, [{}])
        with pytest.raises(ValueError, match="tool_choice requires a tool call"):
            patch.check_call(request, [])
    for choice in (None, "none", "auto"):
        patch.check_call(SimpleNamespace(tools=[1], tool_choice=choice), [])


@pytest.mark.parametrize("event", ["data: [DONE]\n\n", 'data: {"choices": []}\n\n'])
def test_other_events_are_unchanged(event):
    assert patch.end_event(event) == event


def test_last_event_of_a_cut_answer():
    choice = {"index": 0, "finish_reason": "stop"}
    event = patch.end_event(f"data: {json.dumps({'choices': [choice]})}\n\n")
    assert json.loads(event[6:])["choices"][0]["finish_reason"] == "length"
    done = {"type": "response.completed", "response": {"status": "completed"}}
    event = patch.end_event(f"event: response.completed\ndata: {json.dumps(done)}\n\n")
    assert event.startswith("event: response.incomplete\n")
    assert json.loads(event.partition("data: ")[2])["response"]["status"] == "incomplete"
