"""Rows of quantized batches: packed values bit for bit, and joining rows of other kinds."""

from __future__ import annotations

import importlib.util

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches._shared.quantized import merge_quantized as merge
from mlx_patches.probes.quantized_batches import Kind, feed

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core", reason="every release set has MLX")
PATCH = catalogue.builtin().get("batch-quantized")


@pytest.fixture
def kind(ungated):
    if not installed("mlx-vlm"):
        pytest.skip("mlx-vlm is not installed")
    if importlib.util.find_spec("mlx_vlm.models.cache") is None:
        pytest.skip("this release has no caches of its own")
    caches = importlib.import_module("mlx_vlm.models.cache")
    if not hasattr(caches, "BatchQuantizedKVCache"):
        pytest.skip("this release has no quantized batch cache")
    ungated(PATCH)
    return Kind(caches.BatchQuantizedKVCache)


def packed(cache, index, start, end):
    return [part[index, :, start:end].tolist() for part in (*cache.keys, *cache.values)]


def test_unequal_right_padding_keeps_each_rows_own_length(kind):
    cache = kind.batch([0, 0], 10)
    cache.prepare(right_padding=[2, 5])
    cache.finalize()
    assert cache._idx == 10
    for row, length in enumerate((8, 5)):
        one = cache.extract(row)
        assert one.offset == length
        assert packed(one, 0, 0, length) == packed(kind.solo(row, length), 0, 0, length)


def test_what_is_merged_comes_out_again_bit_for_bit(kind):
    rows = [kind.solo(row, length) for row, length in enumerate((5, 0, 270))]
    batch = merge(kind.batch_class, rows)
    for row, solo in enumerate(rows):
        out = batch.extract(row)
        assert (out.offset, out.bits, out.group_size) == (solo.offset, solo.bits, solo.group_size)
        if solo.offset:
            assert packed(out, 0, 0, solo.offset) == packed(solo, 0, 0, solo.offset)


def test_merged_rows_are_not_touched_by_the_batch(kind):
    solo = kind.solo(0, 5)
    before = packed(solo, 0, 0, 5)
    batch = merge(kind.batch_class, [solo, kind.solo(1, 3)])
    feed(batch, [(0, 9), (1, 9)], 1)
    assert packed(solo, 0, 0, 5) == before
    assert solo.offset == 5


def test_a_row_in_floats_is_quantized_like_the_others(kind):
    plain = kind.module.KVCache()
    feed(plain, [(1, 0)], 4)
    batch = merge(kind.batch_class, [kind.solo(0, 6), plain, kind.module.KVCache()])
    assert not kind.wrong(batch, [6, 4, 0])


def test_rows_quantized_otherwise_do_not_join(kind):
    other = kind.module.QuantizedKVCache(group_size=32, bits=8)
    feed(other, [(1, 0)], 4)
    with pytest.raises(ValueError, match="quantized alike"):
        merge(kind.batch_class, [kind.solo(0, 6), other])


def test_left_padding_only_before_the_first_token(kind):
    with pytest.raises(ValueError, match="empty"):
        kind.batch([0, 0], 3).prepare(left_padding=[1, 0])


def test_extend_leaves_the_other_side_as_it_was(kind):
    cache, other = kind.batch([0]), kind.batch([0, 2], 5)
    parts = other.keys
    cache.extend(other)
    assert other.keys is parts
    assert not kind.wrong(cache, [0, 5, 3], rows=[2, 0, 1])


def test_a_row_that_stays_loses_the_padding_that_none_needs(kind):
    cache = kind.batch([0, 0], 10)
    cache.prepare(lengths=[8, 5], right_padding=[2, 5])
    cache.finalize()
    cache.filter(mx.array([1]))
    assert cache.size() == 5
    assert not kind.wrong(cache, [5], rows=[1])
