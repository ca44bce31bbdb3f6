"""``server-lru-order``: entries of several kinds, and look-ups without a result."""

import importlib

import pytest

from mlx_patches.probes.fixtures import make_fed_cache

from ..releases.models import module_or_skip


@pytest.fixture
def prompts(ungated):
    """An empty prompt cache for three entries, patched."""
    caches = module_or_skip("mlx_lm.models.cache", "LRUPromptCache")
    ungated("server-lru-order")
    return caches.LRUPromptCache(max_size=3)


def insert(prompts, key, kind="assistant"):
    caches = importlib.import_module("mlx_lm.models.cache")
    layers = [make_fed_cache(caches.KVCache(), len(key))]
    prompts.insert_cache("model", key, layers, cache_type=kind)


def test_entry_keeps_its_kind(prompts):
    insert(prompts, [1, 2, 3], "system")
    insert(prompts, [4, 5, 6], "system")
    prompts.fetch_nearest_cache("model", [1, 2, 3, 7])
    kinds = {kind: [key for _, key in order] for kind, order in prompts._lru._lrus.items()}
    assert kinds["system"] == [[4, 5, 6], [1, 2, 3]]
    assert not kinds["assistant"]


def test_miss_changes_no_order(prompts):
    insert(prompts, [1, 2, 3])
    insert(prompts, [4, 5, 6])
    assert prompts.fetch_nearest_cache("model", [9, 9])[0] is None
    assert prompts.fetch_nearest_cache("other", [1, 2, 3])[0] is None
    assert [key for _, key in prompts._lru._lrus["assistant"]] == [[1, 2, 3], [4, 5, 6]]
