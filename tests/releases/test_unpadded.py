import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.patches._shared.unpadded import is_unpadded

from . import costs
from .models import module_or_skip


@pytest.fixture
def caches(distribution):
    return module_or_skip(f"{package_of(distribution)}.models.cache", "BatchKVCache")


@pytest.fixture(params=[False, True], ids=["in place", "rebound"], autouse=True)
def alias(request, beside):
    """With this patch an update in place creates a new array; without it the array stays."""
    if request.param:
        beside("left-padding-alias")


def feed(cache, tokens):
    keys = mx.zeros((cache.left_padding.shape[0], 1, tokens, 4))
    cache.update_and_fetch(keys, keys)
    return cache


def list_known(cache, tokens=5):
    first = is_unpadded(cache, tokens)
    feed(cache, tokens)
    return [first, is_unpadded(cache, 1)]


def test_equal_rows_are_unpadded(caches):
    assert list_known(caches.BatchKVCache([0, 0])) == [True, True]
    assert list_known(caches.BatchKVCache([2, 0])) == [False, False]


def test_step_reads_no_device(caches):
    cache = caches.BatchKVCache([0, 0])
    list_known(cache)
    unknown = feed(caches.BatchKVCache([0, 0]), 5)
    with costs.reads() as seen:
        assert is_unpadded(cache, 1)
        assert not is_unpadded(unknown, 1)
    assert not seen


def test_later_chunk_checks_itself(caches):
    cache = feed(caches.BatchKVCache([0, 0]), 5)
    assert list_known(cache) == [True, True]


def test_announced_padding_counts(caches):
    cache = caches.BatchKVCache([0, 0])
    if not hasattr(cache, "prepare"):
        pytest.skip("this release announces nothing")
    assert is_unpadded(cache, 5)
    cache.prepare(left_padding=[1, 0])
    assert list_known(cache) == [False, False]


@pytest.mark.parametrize("asked_before", [True, False])
def test_right_padding_counts_once_moved(caches, asked_before):
    cache = caches.BatchKVCache([0, 0])
    if not hasattr(cache, "prepare") or not hasattr(cache, "finalize"):
        pytest.skip("this release has no right padding")
    if asked_before:
        list_known(cache)
    cache.prepare(lengths=[5, 3], right_padding=[0, 2])
    assert list_known(cache) == [False, False]
    cache.finalize()
    assert not is_unpadded(cache, 1)
    assert not is_unpadded(cache, 5)


def test_other_rows_are_unknown(caches):
    cache = caches.BatchKVCache([0, 0])
    list_known(cache)
    cache.filter([1])
    assert not is_unpadded(cache, 1)
    assert is_unpadded(cache, 5)
    shorter = feed(caches.BatchKVCache([0]), 3)
    cache.extend(shorter)
    assert not is_unpadded(cache, 1)
    assert not is_unpadded(cache, 5)


def test_other_caches_are_unknown(caches):
    assert not is_unpadded(caches.KVCache(), 5)
    if hasattr(caches, "BatchRotatingKVCache"):
        assert not is_unpadded(caches.BatchRotatingKVCache(8, [0, 0]), 5)
    if hasattr(caches, "ArraysCache"):
        assert not is_unpadded(caches.ArraysCache(2), 5)
