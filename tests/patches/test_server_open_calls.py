"""``server-open-calls``: closed calls, and answers without calls."""

import pytest

from mlx_patches.patches.server.server_open_calls import probe
from mlx_patches.probes.lm_server import make_response, post

from ..releases.models import module_or_skip


@pytest.fixture
def server(ungated):
    """The release's server, patched."""
    found = module_or_skip("mlx_lm.server", "ToolCallFormatter")
    ungated("server-open-calls")
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["stop", "length"])
def test_closed_calls_are_returned_once(end, stream, server):
    calls = probe.call_tools(server, ["f", "g"], closed=True, end=end, stream=stream)
    assert calls == (["f", "g"], "tool_calls" if end == "stop" else end)


@pytest.mark.parametrize("stream", [False, True])
def test_text_is_unchanged(stream, server):
    responses = [
        make_response(server, 1, "a"),
        make_response(server, 2, "b"),
        make_response(server, 3, "", state=None, finish_reason="stop"),
    ]
    choices = [one["choices"][0] for one in post(server, responses, stream=stream)]
    texts = [(one.get("message") or one.get("delta")).get("content") for one in choices]
    assert ("".join(filter(None, texts)), choices[-1]["finish_reason"]) == ("ab", "stop")
