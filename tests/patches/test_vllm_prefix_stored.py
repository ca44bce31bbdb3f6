import importlib
from types import SimpleNamespace
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

from mlx_patches.patches.vllm_mlx.vllm_prefix.probe_stored import TOKENS, make_row
from mlx_patches.patches.vllm_mlx.vllm_prefix.stored import copy_value, detach_caches, find_arrays

from ..releases.conftest import is_needed, is_tested

pytestmark = pytest.mark.skipif(not is_tested("vllm-mlx"), reason="vllm-mlx is not tested here")


@pytest.fixture
def prefixes(ungated):
    ungated("vllm-stored-prefix")
    return new_cache()


def new_cache(**options):
    module = importlib.import_module("vllm_mlx.memory_cache")
    config = module.MemoryCacheConfig(**options)
    return module.MemoryAwarePrefixCache(model=object(), config=config)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16], ids=str)
def test_entry_is_copied_bit_identical(prefixes, dtype):
    layers, size = make_row(dtype)
    wanted = [[mx.array(array) for array in find_arrays(layer)] for layer in layers]
    assert prefixes.store(list(range(TOKENS)), layers)
    entry = prefixes._entries[tuple(range(TOKENS))]
    for layer, kept, arrays in zip(layers, entry.cache, wanted, strict=True):
        assert type(kept) is type(layer)
        assert kept is not layer
        for got, array in zip(find_arrays(kept), arrays, strict=True):
            assert got.dtype == array.dtype
            assert mx.array_equal(got, array[..., : got.shape[-2], :] if got.ndim == 4 else array)
    assert entry.memory_bytes == prefixes._current_memory == size


def test_batch_does_not_change_entry(prefixes):
    layers, _ = make_row()
    prefixes.store(list(range(TOKENS)), layers)
    recurrent = prefixes._entries[tuple(range(TOKENS))].cache[1]
    before = mx.array(recurrent[0])
    layers[1][0] = layers[1][0] * 0
    assert mx.array_equal(recurrent[0], before)


@pytest.mark.skipif(not is_needed("vllm-stored-prefix"), reason="this release copies entries")
def test_entry_without_arrays_is_kept(prefixes):
    sized = SimpleNamespace(nbytes=500)
    layers = [SimpleNamespace(keys=sized, values=sized)]
    tokens = list(range(TOKENS))
    assert prefixes.store(tokens, layers)
    entry = prefixes._entries[tuple(tokens)]
    assert entry.cache is layers
    assert entry.memory_bytes == prefixes._current_memory == 1000


def test_known_entry_is_not_copied_again(prefixes):
    tokens = list(range(TOKENS))
    prefixes.store(tokens, make_row()[0])
    entry = prefixes._entries[tuple(tokens)]
    caches = entry.cache
    prefixes.store(tokens, make_row()[0])
    assert prefixes._entries[tuple(tokens)].cache is caches
    assert len(prefixes) == 1

    assert not prefixes.store([], [])
    assert not prefixes.store([1], [])


def test_oldest_entry_is_evicted_by_true_size(ungated):
    ungated("vllm-stored-prefix")
    size = make_row()[1]
    prefixes = new_cache(max_memory_mb=1)
    for start in range(3):
        tokens = list(range(start, start + TOKENS))
        assert prefixes.store(tokens, make_row()[0])
        assert tokens in prefixes
    assert len(prefixes) == 2**20 // size
    assert prefixes._current_memory == len(prefixes) * size
    stats = prefixes.get_stats()
    assert stats["entry_count"] == len(prefixes)


class Pair(NamedTuple):
    first: Any
    second: Any


class Slotted:
    __slots__ = ("keys", "offset", "values")

    def __init__(self):
        self.keys = (mx.ones((1, 2)), mx.zeros((1,), dtype=mx.uint32))
        self.values = Pair(mx.array([True]), {"ssm": mx.array([-0.0])})
        self.offset = 3


def test_containers_are_copied():
    layer = Slotted()
    (kept,) = detach_caches([layer])
    assert kept.offset == 3
    assert isinstance(kept.values, Pair)
    assert kept.values.first.dtype == mx.bool_
    assert kept.keys[1].dtype == mx.uint32
    assert mx.array_equal(1 / kept.values.second["ssm"], mx.array([-mx.inf]))
    ours, theirs = (set(map(id, find_arrays(one))) for one in (kept, layer))
    assert len(ours) == 4 and not ours & theirs


@pytest.mark.parametrize("value", [None, 3, "text", object(), {"state": None}, []])
def test_other_values_are_kept(value):
    assert copy_value(value) is value or copy_value(value) == value
