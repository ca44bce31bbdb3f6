"""``server-ignored-parameters``: values without an effect, and parameters that are honoured."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mlx_patches.patches.server.server_ignored_parameters import patch
from mlx_patches.patches.server.server_ignored_parameters.probe import find_error
from mlx_patches.probes.lm_server import (
    CHAT,
    COMPLETIONS,
    make_context,
    make_generator,
    make_handler,
    make_response,
    post,
    send_text,
)

from ..releases.models import module_or_skip


@pytest.fixture
def server(ungated):
    """The release's server, patched."""
    found = module_or_skip("mlx_lm.server", "ResponseGenerator")
    ungated("server-ignored-parameters")
    return found


@pytest.mark.parametrize("name", patch.IGNORED)
def test_values_that_change_nothing_are_accepted(name, server):
    for value in (None, *patch.IGNORED[name]):
        assert find_error(server, **{name: value}) == ""
    assert name in find_error(server, **{name: {"any": "other"}}, tools=[{}])


@pytest.mark.parametrize("text", [b"\xff\xfe", b'{"a":' * 200_000])
def test_unreadable_body_gets_status_400(text, server):
    handler = make_handler(server, make_generator(server, make_context(server), []), COMPLETIONS)
    handler._set_completion_headers = replied = Mock()
    send_text(handler, text)
    replied.assert_called_once_with(400)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_request_without_a_prompt_gets_status_400(path, server):
    handler = make_handler(server, make_generator(server, make_context(server), []), path)
    handler._set_completion_headers = replied = Mock()
    send_text(handler, b"{}")
    replied.assert_called_once_with(400)


def test_usual_requests_are_accepted(server):
    usual = {"n": 1, "tool_choice": "auto", "user": "me", "metadata": {}, "top_p": 0.5}
    assert find_error(server, **usual, parallel_tool_calls=False) == ""
    assert find_error(server, path=COMPLETIONS, echo=False, suffix="") == ""


def test_error_names_the_parameter_and_the_remedy(server):
    error = "n is not supported by mlx_lm.server: remove it or set it to 1"
    assert find_error(server, n=2) == error
    assert find_error(server, guided_regex="a").endswith("mlx_lm.server: remove it")
    assert "parallel_tool_calls" in find_error(server, parallel_tool_calls=False, tools=[{}])
    assert "temperature" in find_error(server, temperature=-1)


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ({"logit_bias": {"-1": 1}}, "logit_bias: '-1' is not a token id"),
        ({"logit_bias": {"3": None}}, "logit_bias: 'None' is not a number up to 9e+18"),
        (
            {"logit_bias": {"3": -(10**30)}},
            "logit_bias: '-1000000000000000000' is not a number up to 9e+18",
        ),
        ({"top_logprobs": 3}, "top_logprobs: needs logprobs; set it to true"),
        ({"top_logprobs": True, "logprobs": True}, "top_logprobs: not a number"),
        ({"temperature": float("nan")}, "temperature: not a number up to 9e+18"),
        ({"repetition_penalty": 10**30}, "repetition_penalty: not a number up to 9e+18"),
        ({"presence_penalty": float("-inf")}, "presence_penalty: not a number up to 9e+18"),
    ],
)
def test_invalid_values_are_refused(sent, fault, server):
    assert find_error(server, **sent) == fault


@pytest.mark.parametrize(
    "sent",
    [
        {"logit_bias": {"3": 100, "4": -1e39}},
        {"logit_bias": {}, "top_logprobs": 0},
        {"logprobs": True, "top_logprobs": 3},
    ],
)
def test_valid_values_are_accepted(sent, server):
    assert find_error(server, **sent) == ""


def test_stream_options_without_usage(server):
    responses = [make_response(server, 1, "a", finish_reason="length")]
    chunks = post(server, responses, stream=True, stream_options={})
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_parameters_that_are_honoured():
    body = {"messages": [], "tool_choice": "none", "tools": [1], "enable_thinking": False}
    options = {"chat_template_kwargs": {"a": 1}, "stream_options": {"include_usage": True}}
    handler = SimpleNamespace(path=CHAT, body=body, **options)
    patch.check_parameters(lambda handler: None, handler)
    assert "tools" not in handler.body
    assert handler.chat_template_kwargs == {"enable_thinking": False, "a": 1}
    assert handler.stream_options == {"include_usage": True}
