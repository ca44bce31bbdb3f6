import copy
import importlib

import mlx.core as mx
import pytest

from mlx_patches.lab.cache_arrays import count_edges
from mlx_patches.patches._shared.handles import make_handle

from ..releases.conftest import is_installed

CACHES = "mlx_lm.models.cache" if is_installed("mlx-lm") else "mlx_vlm.models.cache"


@pytest.fixture
def caches(ungated):
    ungated("offset-alias")
    return importlib.import_module(CACHES)


def test_handles_share_the_original():
    array = mx.array([1, 2]) + 3
    before = count_edges(array)
    assert count_edges(make_handle(array)) == before
    assert count_edges(array + 0) > before
    array = mx.array([1, 2]) + 3
    mx.eval(make_handle(array))
    assert array.tolist() == [4, 5]


def test_offset_is_an_attribute(caches):
    cache = caches.BatchKVCache([1, 0])
    cache.offset += 4
    assert cache.offset.tolist() == [3, 4]
    cache = caches.BatchKVCache([0])
    cache.offset = 7
    assert cache.offset == 7
    cache.offset = None
    assert cache.offset is None

    cache = caches.BatchKVCache.__new__(caches.BatchKVCache)
    assert not hasattr(cache, "offset")
    with pytest.raises(AttributeError, match="offset"):
        del cache.offset

    cache = caches.BatchKVCache([1, 0])
    shallow = copy.copy(cache)
    cache.update_and_fetch(mx.ones((2, 1, 3, 4)), mx.ones((2, 1, 3, 4)))
    assert shallow.offset.tolist() == [-1, 0]
    assert cache.offset.tolist() == [2, 3]


def test_instances_survive_restore(ungated):
    caches = importlib.import_module(CACHES)
    before = caches.BatchKVCache([2, 0])
    manager = ungated("offset-alias")
    during = caches.BatchKVCache([1, 0])
    assert before.offset.tolist() == [-2, 0]
    manager.restore()
    assert during.offset.tolist() == [-1, 0]
    during.update_and_fetch(mx.ones((2, 1, 3, 4)), mx.ones((2, 1, 3, 4)))
    assert during.offset.tolist() == [2, 3]
