"""``server-logprobs``: requests for some of the log-probabilities, or for none."""

import pytest

from mlx_patches.patches.server.server_logprobs import probe

from ..releases.models import module_or_skip


@pytest.fixture
def server(ungated):
    """The release's server, patched."""
    found = module_or_skip("mlx_lm.server", "_format_top_logprobs")
    ungated("server-logprobs")
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_entries_without_the_most_probable_tokens(stream, server):
    entries = probe.report(server, stream=stream, logprobs=True)
    wanted = [{"id": token, "logprob": probe._LOGPROBS[token]} for token in probe._ANSWER]
    assert entries == wanted


@pytest.mark.parametrize("stream", [False, True])
def test_request_without_log_probabilities(stream, server):
    assert probe.report(server, stream=stream) == []


def test_answer_outside_the_most_probable_tokens_is_named(server):
    entry = probe.report(server, logprobs=True, top_logprobs=1)[0]
    assert (entry["token"], [one["token"] for one in entry["top_logprobs"]]) == ("w3", ["w0"])


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"server-logprobs": ((None, 0, None), {})}
