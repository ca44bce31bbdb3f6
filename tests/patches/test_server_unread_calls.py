"""``server-unread-calls``: unreadable calls with readable ones and with text."""

import pytest

from mlx_patches.patches.server.server_unread_calls.probe import UNREADABLE, call_tools

from ..releases.models import module_or_skip

BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture
def server(ungated):
    """The release's server, patched; mlx-lm 0.31.2 needs the other patch for any bad call."""
    found = module_or_skip("mlx_lm.server", "ToolCallFormatter")
    ungated("server-tool-errors", "server-unread-calls")
    return found


@BOTH
@pytest.mark.parametrize("texts", [["f", UNREADABLE], [UNREADABLE, "f"]])
def test_readable_call_is_kept(texts, stream, server):
    assert call_tools(server, texts, stream=stream) == (UNREADABLE, ["f"], "tool_calls")


@BOTH
def test_text_before_the_call_is_kept(stream, server):
    answer = call_tools(server, [UNREADABLE], before="ok ", stream=stream)
    assert answer == (f"ok {UNREADABLE}", [], "stop")


@BOTH
def test_other_patches_layers(stream, server, ungated):
    ungated("server-logprobs")
    assert call_tools(server, [UNREADABLE], stream=stream) == (UNREADABLE, [], "stop")


@BOTH
def test_answer_at_its_limit(stream, server):
    answer = call_tools(server, [UNREADABLE], end="length", stream=stream)
    assert answer == (UNREADABLE, [], "length")


@BOTH
def test_readable_calls_are_unchanged(stream, server):
    assert call_tools(server, ["f", "g"], stream=stream) == ("", ["f", "g"], "tool_calls")


@BOTH
def test_no_call_is_returned_with_tool_choice_none(stream, server):
    answer = call_tools(server, ["f", UNREADABLE], stream=stream, tool_choice="none")
    assert answer == (f"f{UNREADABLE}", [], "stop")
