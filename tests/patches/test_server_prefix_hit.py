"""``mlx_lm.server``'s prompt cache, repaired: entries that are not cut back."""

from __future__ import annotations

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.server.server_prefix_hit import patch as server_prefix_hit
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.fixtures import cache_of

from ..releases.conftest import installed

pytestmark = pytest.mark.skipif(not installed("mlx-lm"), reason="tests of mlx-lm")
PATCH = catalogue.builtin().get("server-prefix-hit")


@pytest.mark.parametrize("target", PATCH.targets, ids=lambda target: target.path)
def test_what_is_no_cache_is_the_host_s_own(target, ungated):
    try:
        prompts = cache_of(target)()
    except NotApplicable as reason:
        pytest.skip(str(reason))
    manager = ungated(PATCH)
    try:
        prompts.insert_cache("model", [1, 2], ["no cache"])
    except AttributeError:
        pytest.skip("this release keeps nothing but caches")
    assert prompts.fetch_nearest_cache("model", [1, 2]) == (["no cache"], [])
    assert all(outcome.status != "failed" for outcome in manager.status())


def hits_that_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        server_prefix_hit, "one_back", lambda fetch, prompts, model, tokens, found: (found, [])
    )


MUTANTS = {"server-prefix-hit": hits_that_leave_nothing}
