import asyncio
import importlib
import json
from contextvars import ContextVar

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_finish_reason import patch
from mlx_patches.patches.server.vlm_finish_reason.probe import (
    request_answers,
    request_response,
)

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


@pytest.fixture
def server():
    found = importlib.import_module("mlx_vlm.server")
    for name in ("ChatChoice", "ResponseGenerator"):
        if getattr(getattr(found, name, None), "__module__", "") != "mlx_vlm.server":
            pytest.skip(f"this release does not define {name} there")
    return found


def test_concurrent_finish_reasons(server, ungated):
    pytest.importorskip("mlx_patches.patches.server.vlm_stop_text")  # or none stops early
    ungated("vlm-stop-text", "vlm-finish-reason")
    stops = {"cd": "ab", "x": "abcd", "bc": "a", "y": "abcd", "b": "a", "z": "abcd"}
    answers = request_answers("abcd", {}, *({"stop": stop} for stop in stops))
    for answer, text in zip(answers, ["abcd", *stops.values()], strict=True):
        choice = answer.choices[0]
        wanted = "length" if text == "abcd" else "stop"
        assert (choice.message.content, choice.finish_reason) == (text, wanted)
        assert choice.model_dump()["finish_reason"] == wanted


def test_stop_is_reported(server, ungated, monkeypatch):
    wanted = server.ChatChoice(message=server.ChatMessage(role="assistant", content="a"))
    ungated("vlm-finish-reason")
    for reasons, text in ((None, "stop"), ([], "stop"), (["stop"], "stop"), (["length"], "length")):
        monkeypatch.setattr(patch, "ENDED", ContextVar("ended", default=reasons))
        message = server.ChatMessage(role="assistant", content="a")
        choice = server.ChatChoice(finish_reason="stop", message=message)
        assert choice.model_dump() == {**wanted.model_dump(), "finish_reason": text}
        called = server.ChatChoice(finish_reason="tool_calls", message=message)
        assert called.finish_reason == "tool_calls"


def test_streamed_answer_is_unchanged(server, ungated):
    ungated("vlm-finish-reason")
    streamed = server.ChatRequest(model="m", messages=[], stream=True)
    assert not hasattr(server._build_gen_args(streamed), "ended")
    assert server._build_gen_args(server.ChatRequest(model="m", messages=[])).ended == []


@pytest.fixture
def responses(ungated):
    if not hasattr(pytest.importorskip("mlx_vlm.server"), "OpenAIResponse"):
        pytest.skip("this release's server has no responses")
    ungated("vlm-finish-reason")


def test_response_at_its_limit(responses):
    answer = asyncio.run(request_response())
    assert answer.status == "incomplete"
    assert [item["type"] for item in answer.model_dump()["output"]] == ["message"]
    assert answer.output_text == "one two"


def test_streamed_response_at_its_limit(responses):
    last = asyncio.run(request_response(stream=True))[-1]
    response = json.loads(last.partition("data: ")[2])["response"]
    assert (response["status"], response["output"][0]["content"][0]["text"]) == (
        "incomplete",
        "one two",
    )
