import pytest

from mlx_patches.patches.caches.prefix_cache_lists import patch

from ..releases.models import module_or_skip


@pytest.fixture
def caches():
    found = module_or_skip("mlx_vlm.models.cache")
    if hasattr(found.KVCache, "extract"):
        pytest.skip("a row can be taken out of every cache of this release")
    return found


def test_only_batch_rows_are_extracted(caches):
    solo, batch = caches.KVCache, lambda: caches.BatchKVCache([0, 1])
    listed = caches.CacheList
    assert patch.has_rows(batch())
    assert patch.has_rows(listed(batch(), batch()))
    assert patch.has_rows(listed(listed(batch()), batch()))
    assert not patch.has_rows(solo())
    assert not patch.has_rows(listed(batch(), solo()))
    assert not patch.has_rows(listed(listed(solo())))


@pytest.mark.parametrize("is_batch", [True, False])
def test_release_decides_first(caches, is_batch):
    assert patch.check_inner_caches(is_batch, [caches.BatchKVCache([0])]) is is_batch
    assert not patch.check_inner_caches(is_batch, [caches.CacheList(caches.KVCache())])
