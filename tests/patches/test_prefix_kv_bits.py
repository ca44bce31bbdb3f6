import importlib
from types import SimpleNamespace

import pytest

from mlx_patches.patches.caches.prefix_kv_bits import patch
from mlx_patches.patches.caches.prefix_kv_bits.probe import (
    ROWS,
    build_batch,
    compare_layers,
    make_generator,
    make_prefixes,
)

from ..releases.models import prefix_engine


@pytest.fixture
def module(ungated, beside):
    found = prefix_engine()
    beside("batch-quantized", "batch-turbo-quant")
    if not hasattr(importlib.import_module("mlx_vlm.apc"), "_fill_batch_layer_cache"):
        ungated("vlm-prefix-kv-bits")
    return found


@pytest.mark.parametrize("bits", [4, 8])
def test_batch_without_hits(module, bits):
    generator, picks = make_generator(module, kv_bits=bits), make_prefixes()
    batch = build_batch(generator, picks)
    options = {"kv_bits": bits, "kv_group_size": 64}
    for layer, other in enumerate(module._make_cache(generator.model, [0], **options)):
        cache = batch.prompt_cache[layer]
        assert type(cache) is type(other)
        other.extend(cache)
        assert other.offset.tolist() == [0, *(length for length, _ in ROWS)]
    assert generator.kv_bits == bits


def test_hits_are_padded_and_quantized(module):
    batch = build_batch(make_generator(module), make_prefixes())
    longest = max(rest for _, rest in ROWS)
    for cache in batch.prompt_cache:
        assert cache._right_padding.tolist() == [longest - rest for _, rest in ROWS]
    generator = make_generator(module, kv_bits=3.5, kv_quant_scheme="turboquant")
    picks = make_prefixes()
    batch = build_batch(generator, picks)
    assert not compare_layers(batch, generator, picks)
    assert type(batch.prompt_cache[0]).__name__ == "BatchTurboQuantKVCache"


def test_generator_keeps_its_settings(module):
    batch = build_batch(make_generator(module, kv_bits=None), make_prefixes())
    assert {type(cache).__name__ for cache in batch.prompt_cache} == {"BatchKVCache"}
    assert build_batch(make_generator(module), [None] * len(ROWS)) is None
    generator = SimpleNamespace(kv_bits=8)
    with pytest.raises(ZeroDivisionError):
        patch.quantize_hits(lambda generator: 1 / 0, generator)
    assert generator.kv_bits == 8
