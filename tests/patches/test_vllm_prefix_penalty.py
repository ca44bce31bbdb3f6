import inspect

import pytest

from mlx_patches.patches.vllm_mlx.vllm_prefix_penalty.probe import (
    PENALTY,
    answer_uncached,
    fill_cache,
    find_repeating_prompt,
)
from mlx_patches.probes.vllm_scheduler import MEMORY, build_llama

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("vllm-mlx"), reason="tests of vllm-mlx")

PAGED = {"use_paged_cache": True, "use_memory_aware_cache": False, "paged_cache_block_size": 16}
CONFIGS = {
    "memory": MEMORY,
    "paged": PAGED,
    "chunked": {**MEMORY, "chunked_prefill_tokens": 64},
    "bounded": {**MEMORY, "max_kv_size": 4096},
}


@pytest.fixture(autouse=True)
def _applied(ungated, beside):
    from mlx_lm.generate import BatchGenerator

    if "all_tokens" not in inspect.signature(BatchGenerator.insert).parameters:
        pytest.skip("this batch generator takes no tokens that come before")
    ungated("vllm-prefix-penalty")
    beside("vllm-prefix-hit", "vllm-legacy-prefix-hit", "vllm-paged-prefix")


@pytest.fixture(scope="module")
def model():
    return build_llama()


@pytest.mark.parametrize("name", CONFIGS)
def test_penalty_ignores_prefix_cache(model, name):
    prompt, repeated = find_repeating_prompt(model)
    expected = answer_uncached(model, prompt)
    assert expected[0] != repeated
    server = fill_cache(model, **CONFIGS[name])
    assert server.answer(prompt, repetition_penalty=PENALTY) == expected
    assert server.request.cached_tokens
    assert server.answer(prompt, repetition_penalty=PENALTY) == expected, "the prompt is stored"


def test_generator_without_processors_is_unchanged(model):
    server = fill_cache(model, **MEMORY)
    prompt, _ = find_repeating_prompt(model)
    server.add(prompt)
    server.scheduler._schedule_waiting()
    assert server.request.cached_tokens
    (sequence,) = server.scheduler.batch_generator._unprocessed_sequences
    assert sequence[4] == []


def test_cached_tokens_are_added_once(model):
    server = fill_cache(model, **MEMORY)
    prompt, _ = find_repeating_prompt(model)
    server.add(prompt, repetition_penalty=PENALTY)
    server.scheduler._schedule_waiting()
    server.scheduler._schedule_waiting()
    (sequence,) = server.scheduler.batch_generator._unprocessed_sequences
    fed = [token for segment in sequence[1] for token in segment]
    assert [*sequence[4], *fed] == prompt
    assert len(sequence[4]) == server.request.cached_tokens
