import copy
import importlib

import mlx.core as mx
import pytest

from mlx_patches.core.patch import Attribute
from mlx_patches.lab.cache_arrays import count_edges
from mlx_patches.patches._shared.handles import make_handle
from mlx_patches.patches.caches.reads import patch as reads

from ..releases.conftest import installed
from .mutants import recoded

CACHES = "mlx_lm.models.cache" if installed("mlx-lm") else "mlx_vlm.models.cache"


@pytest.fixture
def caches(ungated):
    ungated("offset-alias")
    return importlib.import_module(CACHES)


def test_handle_adds_no_node():
    array = mx.array([1, 2]) + 3
    before = count_edges(array)
    assert count_edges(make_handle(array)) == before
    assert count_edges(array + 0) > before


def test_evaluating_handle_evaluates_original():
    array = mx.array([1, 2]) + 3
    mx.eval(make_handle(array))
    assert array.tolist() == [4, 5]


def test_outside_in_place_addition_reaches_cache(caches):
    cache = caches.BatchKVCache([1, 0])
    cache.offset += 4
    assert cache.offset.tolist() == [3, 4]


def test_plain_values_pass_through(caches):
    cache = caches.BatchKVCache([0])
    cache.offset = 7
    assert cache.offset == 7
    cache.offset = None
    assert cache.offset is None


def test_missing_attribute_raises(caches):
    cache = caches.BatchKVCache.__new__(caches.BatchKVCache)
    assert not hasattr(cache, "offset")
    with pytest.raises(AttributeError, match="offset"):
        del cache.offset


def test_copies_are_independent(caches):
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


def handles_that_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "Attribute", lambda name, read: Attribute(name))


MUTANTS = {
    "offset-alias": handles_that_alias,
    "left-padding-alias": handles_that_alias,
    "frozen-state": recoded(reads, copy_state=lambda state: state),
}
