import importlib
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from mlx_patches.patches.vllm_mlx.vllm_prefix.probe_fetched import SHARED, TOKENS, make_filled

from ..releases.conftest import is_tested

pytestmark = pytest.mark.skipif(not is_tested("vllm-mlx"), reason="vllm-mlx is not tested here")


@pytest.fixture
def prefixes(ungated):
    ungated("vllm-fetched-prefix")
    return make_filled(importlib.import_module("vllm_mlx.memory_cache"))


def test_hit_is_readable_in_another_thread(prefixes):
    found, rest = prefixes.fetch([*range(SHARED), TOKENS])
    with ThreadPoolExecutor(1) as generation:
        generation.submit(mx.eval, [layer.state for layer in found]).result()
    kept = prefixes._entries[tuple(range(TOKENS))].cache[0]
    assert rest == [TOKENS]
    assert mx.array_equal(found[0].state[0], kept.keys[..., :SHARED, :])


def test_hit_copies_nothing(prefixes):
    before = mx.get_active_memory()
    found, _ = prefixes.fetch([*range(SHARED), TOKENS])
    assert found
    assert mx.get_active_memory() - before < 1024


def test_miss_stays_miss(prefixes):
    assert prefixes.fetch([TOKENS + 1, 2, 3]) == (None, [TOKENS + 1, 2, 3])
