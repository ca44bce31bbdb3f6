"""``server-prefix-penalty``: every penalty, and processors that need no tokens."""

from types import SimpleNamespace

import pytest

from mlx_patches.patches.server.server_prefix_penalty import patch
from mlx_patches.patches.server.server_prefix_penalty.probe import PROMPT, find_penalized

from ..releases.models import module_or_skip


@pytest.mark.parametrize("held", range(len(PROMPT)))
@pytest.mark.parametrize("name", ["repetition", "presence", "frequency"])
def test_every_penalty_covers_the_cached_tokens(name, held, ungated):
    server = module_or_skip("mlx_lm.server", "_make_logits_processors")
    if f"{name}_penalty" not in server.LogitsProcessorArguments.__annotations__:
        pytest.skip("this release has no such penalty")
    ungated("server-prefix-penalty")
    assert find_penalized(server, held, **{f"{name}_penalty": 1.5}) == sorted(set(PROMPT))


def test_request_without_penalties_is_unchanged():
    bias = SimpleNamespace(logit_bias={1: 2.0}, repetition_penalty=0.0)
    assert not patch.has_penalties(SimpleNamespace(logits=bias))


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"server-prefix-penalty": ((SimpleNamespace(logits=SimpleNamespace()),), {})}
