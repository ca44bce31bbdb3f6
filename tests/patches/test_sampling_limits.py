from typing import Any

import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of

from ..releases.models import module_or_skip


@pytest.fixture
def samplers(distribution: str) -> Any:
    return module_or_skip(f"{package_of(distribution)}.sample_utils", "make_logits_processors")


def bias_logits(samplers: Any, **options: Any) -> list[Any]:
    logits = mx.array([[0.5, 1.0, -2.0, 3.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    for processor in samplers.make_logits_processors(**options):
        logits = processor(mx.array([1, 2, 2]), logits)
    return logits.tolist()


@pytest.mark.parametrize("bias", [{}, {1: 2.0}, {0: -1.5, 4: 0.5}, {3: -100.0}])
def test_allowed_values_give_same_logits(samplers, ungated, bias):
    options = {"logit_bias": bias, "repetition_penalty": 1.5, "repetition_context_size": 2}
    before = bias_logits(samplers, **options)
    manager = ungated("sampling-limits")
    assert bias_logits(samplers, **options) == before
    outside = {**bias, 5: 9.0, -1: 9.0, 10**9: 9.0, 10**30: 9.0}
    assert bias_logits(samplers, **{**options, "logit_bias": outside}) == before
    assert not manager.failures


def test_processor_accepts_other_sizes(samplers, ungated):
    ungated("sampling-limits")
    (processor,) = samplers.make_logits_processors(logit_bias={1: 2.0, 6: 3.0})
    for size, wanted in ((2, [0, 2]), (8, [0, 2, 0, 0, 0, 0, 3, 0]), (1, [0])):
        assert processor([], mx.zeros((1, size))).tolist() == [wanted]


@pytest.mark.parametrize("top_k", [1, 3, 4, 5, 6, 10**30])
def test_top_k_of_vocabulary_keeps_all(samplers, ungated, top_k):
    logprobs = mx.array([[0.5, 1.0, -2.0, 3.0, 0.0]])
    ungated("sampling-limits")
    kept = samplers.apply_top_k(logprobs, top_k).tolist()[0]
    assert sum(value > float("-inf") for value in kept) == min(top_k, 5)


def test_invalid_bias_raises_as_released(samplers, ungated):
    """Later it would raise in the thread that all requests share."""
    manager = ungated("sampling-limits")
    with pytest.raises((ValueError, TypeError)):
        samplers.make_logits_processors(logit_bias={1: None})
    assert not manager.failures
