import importlib

import pytest

from mlx_patches.patches.generation.vlm_prompt_cache_cut.patch import find_cuttable_prefix
from mlx_patches.patches.generation.vlm_prompt_cache_cut.probe import CASES, describe_difference
from mlx_patches.probes.fixtures import feed_one_by_one

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-vlm"), reason="tests of mlx-vlm")
HELD = 8


class State:
    def __init__(self, *caches):
        self.cache, self.token_ids = list(caches), list(range(HELD))

    def find(self, new_ids):
        return next(
            (at for at, (a, b) in enumerate(zip(self.token_ids, new_ids, strict=False)) if a != b),
            min(len(self.token_ids), len(new_ids)),
        )


@pytest.fixture
def kinds():
    return importlib.import_module("mlx_vlm.models.cache")


def test_unwrapped_window_is_cut(kinds):
    state = State(
        feed_one_by_one(kinds.KVCache(), HELD),
        feed_one_by_one(kinds.RotatingKVCache(max_size=16), HELD),
    )
    assert find_cuttable_prefix(State.find, state, [0, 1, 2, 9, 9]) == 3
    assert [cache.offset for cache in state.cache] == [3, 3]
    assert state.token_ids == [0, 1, 2]


@pytest.mark.parametrize("prompt", [[0, 1, 2, 3, 4, 5, 6, 7, 9], [9, 9], [0, 1, 2]])
def test_exact_prefix_is_unchanged(kinds, prompt):
    """The prompt repeats all of the last turn, none of it, or is a beginning of it."""
    state = State(feed_one_by_one(kinds.RotatingKVCache(max_size=4), HELD))
    assert find_cuttable_prefix(State.find, state, prompt) == State.find(state, prompt)
    assert state.cache[0].offset == HELD
    assert len(state.token_ids) == HELD


def test_uncuttable_cache_is_recomputed(kinds):
    class Recurrent:
        """A cache without an offset, like those of recurrent layers."""

    for other in (feed_one_by_one(kinds.RotatingKVCache(max_size=4), HELD), Recurrent()):
        plain = feed_one_by_one(kinds.KVCache(), HELD)
        state = State(plain, other)
        assert find_cuttable_prefix(State.find, state, [0, 1, 2, 9, 9]) == 0
        assert plain.offset == HELD


def test_no_cache():
    state = State()
    state.cache = None
    assert find_cuttable_prefix(State.find, state, [0, 1, 9]) == 2


@pytest.mark.parametrize("place", ["mlx_vlm", "mlx_vlm.generate.dispatch"])
def test_every_cache_class_is_repaired(place, ungated):
    """The public class and, if it is a different one, that next to ``stream_generate``."""
    try:
        kind = importlib.import_module(place).PromptCacheState
    except (ImportError, AttributeError):
        pytest.skip(f"{place} has no PromptCacheState")
    ungated("vlm-prompt-cache-cut")
    assert describe_difference(kind, *CASES[0]) == ""
