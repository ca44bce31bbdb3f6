"""``vlm-prefix-cache-lists``: which caches a row is extracted from."""

from __future__ import annotations

import pytest

from mlx_patches.patches.caches.prefix_cache_lists import patch

from ..releases.models import module_or_skip


@pytest.fixture
def caches():
    """The release's cache module."""
    found = module_or_skip("mlx_vlm.models.cache")
    if hasattr(found.KVCache, "extract"):
        pytest.skip("every cache of this release has extract")
    return found


def test_only_batch_rows_are_extracted(caches):
    alone, batch = caches.KVCache, lambda: caches.BatchKVCache([0, 1])
    listed = caches.CacheList
    assert patch.has_rows(batch())
    assert patch.has_rows(listed(batch(), batch()))
    assert patch.has_rows(listed(listed(batch()), batch()))
    assert not patch.has_rows(solo())
    assert not patch.has_rows(listed(batch(), solo()))
    assert not patch.has_rows(listed(listed(solo())))


@pytest.mark.parametrize("says", [True, False])
def test_release_is_called_first(caches, says):
    assert patch.ask_parts(lambda layers: says, [caches.BatchKVCache([0])]) is says
    assert not patch.ask_parts(lambda layers: says, [caches.CacheList(caches.KVCache())])
