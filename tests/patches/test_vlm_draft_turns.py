"""``vlm-draft-turns``: a turn after drafts, over caches that may lack a token."""

import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches.generation.vlm_draft_options.probe import Drafter, decode
from mlx_patches.patches.generation.vlm_draft_turns import patch
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("offsets", "length"),
    [([5, 5], 5), ([9], 7), ([None, 6], 6), ([None], 7), ([], 7), ([0], 7)],
)
def test_prefix_is_in_caches(offsets, length):
    caches = [SimpleNamespace(offset=one) for one in offsets]
    assert patch.limit_prefix(7, SimpleNamespace(cache=caches)) == length


def test_turn_is_that_of_a_fresh_cache(ungated):
    module_or_skip("mlx_vlm.speculative.cache_state")  # earlier, rejected drafts stay in the caches
    module = importlib.import_module("mlx_vlm.generate")
    ungated("vlm-draft-turns")
    model = tiny("mlx-vlm", "qwen3_5").module
    prompt, more = [3, 1, 4, 2], [7, 5]
    drafts = {"draft_model": Drafter(), "draft_kind": "dflash"}
    cache = importlib.import_module("mlx_vlm.models.cache").make_prompt_cache(model)
    state = module.PromptCacheState()
    text = [*prompt, *decode(module, model, prompt, prompt_cache=cache, **drafts)]
    state.update(text, cache)
    start = state.find_prefix_length([*text, *more])
    after = decode(module, model, [*text, *more][start:], prompt_cache=cache, **drafts)
    assert after == decode(module, model, [*text, *more])
