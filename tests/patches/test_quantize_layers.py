import importlib
import importlib.util

import mlx.core as mx

from mlx_patches.core.packages import package_of

from ..releases.models import module_or_skip

START = {"quantized_kv_start": 0, "kv_group_size": 64}


def function_and_caches(distribution):
    package = package_of(distribution)
    generate = module_or_skip(f"{package}.generate", "maybe_quantize_kv_cache")
    own = package == "mlx_vlm" and importlib.util.find_spec("mlx_vlm.models.cache")
    caches = importlib.import_module("mlx_vlm.models.cache" if own else "mlx_lm.models.cache")
    return generate.maybe_quantize_kv_cache, caches


def make_filled_layers(caches, *kinds):
    layers = [caches.RotatingKVCache(8) if k == "sliding" else caches.KVCache() for k in kinds]
    for layer in layers:
        layer.update_and_fetch(mx.ones((1, 2, 4, 64)), mx.ones((1, 2, 4, 64)))
    return layers


def kinds(layers):
    return [type(layer).__name__ for layer in layers]


def test_only_rotating_layers_are_spared(ungated, distribution):
    ungated("quantize-rotating")
    quantize, caches = function_and_caches(distribution)
    layers = make_filled_layers(caches, "full", "sliding", "full")
    before = list(layers)
    for _ in range(2):  # the release calls it at each step
        quantize(layers, kv_bits=8, **START)
        assert kinds(layers) == ["QuantizedKVCache", "RotatingKVCache", "QuantizedKVCache"]
        assert layers[1] is before[1]


def test_nothing_without_bits_or_before_start(ungated, distribution):
    ungated("quantize-rotating", "vlm-quantize-last-layer")
    quantize, caches = function_and_caches(distribution)
    layers = make_filled_layers(caches, "full", "sliding", "full")
    quantize(layers, kv_bits=None, **START)
    quantize(layers, 5, 64, 8)
    assert kinds(layers) == ["KVCache", "RotatingKVCache", "KVCache"]


def test_both_patches_together(ungated):
    module_or_skip("mlx_vlm.generate", "__path__")  # the last layer is patched from 0.6.0 on
    ungated("quantize-rotating", "vlm-quantize-last-layer")
    quantize, caches = function_and_caches("mlx-vlm")
    layers = make_filled_layers(caches, "full", "sliding", "full")
    quantize(layers, 0, 64, 8)
    assert kinds(layers) == ["QuantizedKVCache", "RotatingKVCache", "KVCache"]
    layers = make_filled_layers(caches, "full", "sliding", "full")
    quantize(layers, kv_bits=4, kv_quant_scheme="turboquant", **START)
    assert kinds(layers) == ["TurboQuantKVCache", "RotatingKVCache", "KVCache"]
