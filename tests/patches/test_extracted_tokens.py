"""``extracted-tokens``: the row continues unchanged after the extraction."""

import pytest

from mlx_patches.probes.batch_invariance import tiny

from ..releases.models import module_or_skip


def decode(module, extract):
    generator = module.BatchGenerator(tiny("mlx-lm", "qwen3").module, max_tokens=6)
    (uid,) = generator.insert([[5, 9, 2, 7]])
    answer = []
    while len(answer) < 6:
        if extract:
            cache, tokens = generator.extract_cache([uid])[uid]
            tokens.append(-1)
            cache.clear()
        _, responses = generator.next()
        answer += [response.token for response in responses]
    return answer


def test_row_goes_on_whatever_the_caller_does(ungated):
    module = module_or_skip("mlx_lm.generate", "BatchGenerator")
    if not hasattr(module.BatchGenerator, "extract_cache"):
        pytest.skip("this release extracts no tokens")
    ungated("extracted-tokens")
    assert decode(module, extract=True) == decode(module, extract=False)
