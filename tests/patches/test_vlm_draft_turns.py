"""``vlm-draft-turns``: a turn after drafts, over caches that may lack a token."""

import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches.generation.vlm_draft_turns import patch
from mlx_patches.probes.batch_invariance import tiny
from mlx_patches.probes.drafted import Drafter, decode

from ..releases.models import module_or_skip


@pytest.mark.parametrize(
    ("offsets", "length"),
    [([5, 5], 5), ([9], 7), ([None, 6], 6), ([None], 7), ([], 7), ([0], 7)],
)
def test_prefix_is_in_caches(offsets, length):
    caches = [SimpleNamespace(offset=one) for one in offsets]
    assert patch.limit_prefix(7, SimpleNamespace(cache=caches)) == length


@pytest.mark.parametrize("length", range(2, 8))
def test_turn_is_that_of_a_fresh_cache(ungated, length):
    module_or_skip("mlx_vlm.speculative")
    module = importlib.import_module("mlx_vlm.generate")
    ungated("vlm-draft-turns")
    model = tiny("mlx-vlm", "qwen3_5").module
    prompt, more, size = [3, 1, 4, 2], [7, 5], {"max_tokens": length}
    cache = importlib.import_module("mlx_vlm.models.cache").make_prompt_cache(model)
    state = module.PromptCacheState()
    drafts = {"draft_model": Drafter(), "draft_kind": "dflash", "prompt_cache": cache}
    text = [*prompt, *decode(module, model, prompt, **drafts, **size)]
    state.update(text, cache)
    start = state.find_prefix_length([*text, *more])
    kept = {"prompt_cache": cache} if start else {}
    after = decode(module, model, [*text, *more][start:], **kept, **size)
    assert after == decode(module, model, [*text, *more], **size)


@pytest.mark.parametrize(("trims", "left", "found"), [(True, 5, 5), (False, 7, 0)])
def test_rounds_that_end_early_keep_no_rejected_draft(trims, left, found):
    class Cache(SimpleNamespace):
        def trim(self, count):
            self.offset -= count

    kept = [Cache(offset=3, is_trimmable=lambda: trims)]

    def rounds(model, draft_model, prompt_cache):
        kept[0].offset += 4
        yield from "abcd"

    steps = patch.drop_rejected(rounds, None, None, kept)
    assert [next(steps), next(steps)] == ["a", "b"]
    steps.close()
    assert kept[0].offset == left
    assert patch.limit_prefix(9, SimpleNamespace(cache=kept)) == found
