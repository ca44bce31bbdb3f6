"""TurboQuant batches: codecs that sort channels, saved files, and the record of padding."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.caches.quantized.probe import restored
from mlx_patches.probes.quantized_batches import Kind, feed

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core", reason="every release set has MLX")
PATCH = catalogue.builtin().get("batch-turbo-quant")
WIDTH = 32


@pytest.fixture
def kind(ungated):
    if not installed("mlx-vlm") or importlib.util.find_spec("mlx_vlm.turboquant") is None:
        pytest.skip("this release has no TurboQuant")
    module = importlib.import_module("mlx_vlm.turboquant")
    if not hasattr(module, "BatchTurboQuantKVCache"):
        pytest.skip("this release has no TurboQuant batch cache")
    ungated(PATCH)
    return Kind(module.BatchTurboQuantKVCache)


def loud(channels, tokens=4):
    """Keys and values of one row; these channels have larger values."""
    drawn = mx.random.normal((1, 2, tokens, WIDTH), key=mx.random.key(sum(channels)))
    gain = mx.ones((WIDTH,))
    gain[mx.array(channels)] = 9.0
    return drawn * gain, -drawn * gain


def split(module, channels):
    """A solo cache whose codecs store these channels with more bits."""
    try:
        cache = module.TurboQuantKVCache(bits=3.5, key_bits=3.5, value_bits=3.5)
    except TypeError:
        pytest.skip("this release has one number of bits a side")
    cache.update_and_fetch(*loud(channels))
    assert set(channels) <= set(cache.key_codec.high_idx.tolist())
    return cache


def near(cache, row, start, keys):
    seen = cache.dequantize()[0][row, :, start : cache._idx]
    return (mx.linalg.norm(seen - keys[0]) / mx.linalg.norm(keys)).item() < 0.2


def test_rows_whose_codecs_sort_channels_differently_merge(kind):
    channels = (range(16), range(16, 32))
    batch = kind.module.TurboQuantKVCache.merge([split(kind.module, list(c)) for c in channels])
    for row, own in enumerate(channels):
        assert near(batch, row, 0, loud(list(own))[0])


def test_batches_whose_codecs_sort_channels_differently_extend(kind):
    channels = (range(16), range(16, 32))
    first, other = (
        kind.module.TurboQuantKVCache.merge([split(kind.module, list(c))]) for c in channels
    )
    first.extend(other)
    for row, own in enumerate(channels):
        assert near(first, row, 0, loud(list(own))[0])


def test_a_restored_batch_reads_its_channels_as_before(kind):
    batch = kind.module.TurboQuantKVCache.merge([split(kind.module, list(range(5, 21)))])
    again = restored(batch)
    assert mx.array_equal(again.dequantize()[0], batch.dequantize()[0]).item()
    assert again.key_codec.high_idx.tolist() == batch.key_codec.high_idx.tolist()


def test_meta_state_is_text_and_an_empty_cache_has_the_releases_own(kind):
    cache = kind.batch([0, 0])
    before = len(cache.meta_state)
    feed(cache, [(0, 0), (1, 0)], 3)
    assert all(isinstance(entry, str) for entry in cache.meta_state)
    assert len(cache.meta_state) == before + 1


def test_a_state_written_without_the_patch_still_loads(kind):
    cache = kind.batch([2, 0], 5)
    again = type(cache).from_state(cache.state, cache.meta_state[:-1])
    feed(again, [(0, 3), (1, 5)], 1)
    assert not kind.wrong(again, [4, 6])


def test_padding_that_came_late_is_known_to_attention(kind):
    cache = kind.batch([0])
    if not hasattr(cache, "fused_attention_eligible"):
        pytest.skip("this release has one way of attention for batches")
    cache.prepare(right_padding=[2])
    feed(cache, [(0, 0)], 5)
    cache.finalize()
    assert not cache.fused_attention_eligible
    assert kind.module.TurboQuantKVCache.merge([kind.solo(0, 3)]).fused_attention_eligible
    assert not kind.module.TurboQuantKVCache.merge(
        [kind.solo(0, 3), kind.solo(1, 1)]
    ).fused_attention_eligible


def test_a_row_in_floats_is_quantized_like_the_others(kind):
    caches = importlib.import_module("mlx_vlm.models.cache")
    plain = caches.KVCache()
    feed(plain, [(1, 0)], 4)
    batch = kind.module.TurboQuantKVCache.merge([kind.solo(0, 6), plain, caches.KVCache()])
    assert not kind.wrong(batch, [6, 4, 0])


def test_rows_quantized_otherwise_do_not_join(kind):
    other = kind.module.TurboQuantKVCache(bits=3)
    feed(other, [(1, 0)], 4)
    with pytest.raises(ValueError, match="quantized alike"):
        kind.module.TurboQuantKVCache.merge([kind.solo(0, 6), other])
