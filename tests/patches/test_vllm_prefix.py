import importlib
import random

import mlx.core as mx
import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.vllm_mlx.vllm_prefix.probe import LEGACY, compare_answers
from mlx_patches.probes.vllm_scheduler import (
    WINDOW,
    build_llama,
    build_sliding_llama,
    build_windowed_llama,
)

from ..releases.conftest import is_installed, verdict
from ..releases.models import or_skip

pytestmark = pytest.mark.skipif(not is_installed("vllm-mlx"), reason="tests of vllm-mlx")

QUANTIZED = {"kv_cache_quantization": True, "kv_cache_min_quantize_tokens": 1}


@pytest.fixture(autouse=True)
def _applied(ungated, beside):
    importlib.import_module("mlx_lm.models.cache")
    ungated("vllm-prefix-hit", "vllm-legacy-prefix-hit")
    # Merging and extracting rotating caches need these below mlx-lm 0.31.2.
    beside("batch-rotating-extract", "rotating-merge")


def prompts(count=25, seed=3):
    """Prompts of 2 to 22 tokens, shorter and longer than the window; many begin alike."""
    chosen = random.Random(seed)
    base = [1 + (7 * i) % 90 for i in range(20)]
    lengths = (2, 3, WINDOW - 2, WINDOW - 1, WINDOW, WINDOW + 1, 12, 20)
    return [
        base[: chosen.choice(lengths)]
        + [chosen.randrange(90, 95) for _ in range(chosen.randrange(3))]
        for _ in range(count)
    ]


@pytest.mark.parametrize("cache", [{}, LEGACY], ids=["memory", "legacy"])
@pytest.mark.parametrize("model", [build_llama, build_sliding_llama, build_windowed_llama])
@or_skip()
def test_answers_do_not_depend_on_history(model, cache):
    result = compare_answers(model(), prompts(), **cache)
    assert not result.red, result.detail


@or_skip()
def test_answers_with_quantized_cache():
    """Sliding layers are not quantized, so the answers are exact."""
    result = compare_answers(build_windowed_llama(), prompts(), **QUANTIZED)
    assert not result.red, result.detail


def test_legacy_cache_of_other_objects():
    prefixes = importlib.import_module("vllm_mlx.prefix_cache").PrefixCacheManager(object(), 4)
    kept = ["no cache"]
    prefixes.store_cache([1, 2], kept)
    found, rest = prefixes.fetch_cache([1, 2, 3])
    assert (found, rest) == (kept, [3])

    class Old:
        """A host's own cache class, without ``is_trimmable``."""

        offset = 5

        def trim(self, count):
            self.offset -= count

    prefixes = importlib.import_module("vllm_mlx.prefix_cache").PrefixCacheManager(object(), 4)
    assert prefixes._can_trim_cache([Old(), Old()])
    prefixes.store_cache([1, 2, 3, 4, 5], [Old()])
    found, rest = prefixes.fetch_cache([1, 2, 3, 4, 5])
    assert (found[0].offset, rest) == (4, [5])


def test_cut_window_is_kept_or_marked():
    from mlx_lm.models.cache import RotatingKVCache

    from mlx_patches.patches.vllm_mlx.vllm_prefix.hit import INCOMPLETE

    host = importlib.import_module("vllm_mlx.memory_cache")
    patch = catalogue.builtin().get("vllm-prefix-hit")
    decided = verdict(patch, patch.targets[1])
    if not decided.ok:
        pytest.skip(decided.reason)
    short, wrapped = (RotatingKVCache(max_size=WINDOW) for _ in range(2))
    for layer, length in ((short, WINDOW - 2), (wrapped, 3 * WINDOW)):
        for position in range(length):
            layer.update_and_fetch(*[mx.full((1, 1, 1, 2), position)] * 2)
    cut = host._trim_cache_offset([short], 2)[0]
    assert type(cut) is RotatingKVCache
    assert (cut.offset, short.offset) == (WINDOW - 4, WINDOW - 2)
    assert not hasattr(cut, INCOMPLETE)
    cut = host._trim_cache_offset([wrapped], 2)
    assert hasattr(cut[0], INCOMPLETE)
    if hasattr(host, "_dequantize_cache"):
        assert hasattr(host._dequantize_cache(cut)[0], INCOMPLETE)
