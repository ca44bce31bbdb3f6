"""``draft-kept-cache``: callers that stop early, quantized caches, prompts of any length."""

import importlib

import pytest

from mlx_patches.patches.generation.draft_kept_cache import patch, probe
from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import module_or_skip

PROMPT = [5, 9, 2, 7]


@pytest.fixture
def generate(ungated):
    module = module_or_skip("mlx_lm.generate", "speculative_generate_step")
    ungated("draft-kept-cache")
    return module


@pytest.fixture
def models():
    return [tiny("mlx-lm", "qwen3", seed).module for seed in (0, 1)]


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("prompt", [[5], PROMPT])
def test_caches_hold_what_an_early_stop_has_read(drafts, prompt, generate, models):
    mx = importlib.import_module("mlx.core")
    for draft in models:
        for length in range(1, 6):
            kept = probe.make_caches(models[0], draft)
            steps = generate.speculative_generate_step(
                mx.array(prompt),
                models[0],
                draft,
                prompt_cache=kept,
                max_tokens=20,
                num_draft_tokens=drafts,
            )
            for _ in range(length):
                next(steps)
            steps.close()
            assert {cache.offset for cache in kept} == {len(prompt) + length}


def test_caller_gets_quantized_caches(generate, models):
    mx = importlib.import_module("mlx.core")
    kept = probe.make_caches(*models)
    steps = generate.speculative_generate_step(
        mx.array(PROMPT), *models, prompt_cache=kept, max_tokens=6, kv_bits=8, kv_group_size=32
    )
    assert len(list(steps)) == 6
    if all(type(cache).__name__ == "KVCache" for cache in kept):
        pytest.skip("this release starts to quantize later")
    assert {type(cache).__name__ for cache in kept} == {"QuantizedKVCache"}
    assert {cache.offset for cache in kept} == {len(PROMPT) + 6}


def test_generation_without_kept_caches_is_unchanged(generate, models):
    mx = importlib.import_module("mlx.core")
    steps = generate.speculative_generate_step(mx.array(PROMPT), *models, max_tokens=5)
    kept = probe.make_caches(*models)
    wanted = probe.decode(generate, *models, PROMPT, kept, 5)
    assert [int(step[0]) for step in steps] == wanted


def test_missing_tokens_may_begin_in_the_prompt():
    mx = module_or_skip("mlx.core")
    assert patch.find_missing(mx.array([1, 2, 3]), [4, 5], 2) == [3, 4, 5]
    assert patch.find_missing(mx.array([1, 2, 3]), [4, 5], 3) == [4, 5]
    assert patch.find_missing(mx.array([1, 2, 3]), [4, 5], 5) == []
    assert patch.find_missing(mx.array([1, 2, 3]), [4, 5], 9) == []
