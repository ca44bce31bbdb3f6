"""Prompt caches quantized by the release's own function; some layers are not quantized."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.generation.quantize_layers import last_layer as quantize_last_layer
from mlx_patches.patches.generation.quantize_layers import rotating as quantize_rotating

from ..releases.conftest import installed

mx = pytest.importorskip("mlx.core", reason="every release set has MLX")
START = {"quantized_kv_start": 0, "kv_group_size": 64}
PACKAGES = [
    pytest.param(distribution.replace("-", "_"), id=distribution)
    for distribution in ("mlx-lm", "mlx-vlm")
    if installed(distribution)
]


def function_and_caches(package):
    generate = importlib.import_module(f"{package}.generate")
    if not hasattr(generate, "maybe_quantize_kv_cache"):
        pytest.skip("this release does not quantize prompt caches")
    own = package == "mlx_vlm" and importlib.util.find_spec("mlx_vlm.models.cache")
    caches = importlib.import_module("mlx_vlm.models.cache" if own else "mlx_lm.models.cache")
    return generate.maybe_quantize_kv_cache, caches


def filled(caches, *kinds):
    layers = [caches.RotatingKVCache(8) if k == "sliding" else caches.KVCache() for k in kinds]
    for layer in layers:
        layer.update_and_fetch(mx.ones((1, 2, 4, 64)), mx.ones((1, 2, 4, 64)))
    return layers


def kinds(layers):
    return [type(layer).__name__ for layer in layers]


@pytest.mark.parametrize("package", PACKAGES)
def test_layers_that_rotate_stay_and_others_do_not(ungated, package):
    ungated(catalogue.builtin().get("quantize-rotating"))
    quantize, caches = function_and_caches(package)
    layers = filled(caches, "full", "sliding", "full")
    before = list(layers)
    for _ in range(2):  # the release calls it at each step
        quantize(layers, kv_bits=8, **START)
        assert kinds(layers) == ["QuantizedKVCache", "RotatingKVCache", "QuantizedKVCache"]
        assert layers[1] is before[1]


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_happens_without_bits_or_before_the_start(ungated, package):
    for name in ("quantize-rotating", "vlm-quantize-last-layer"):
        ungated(catalogue.builtin().get(name))
    quantize, caches = function_and_caches(package)
    layers = filled(caches, "full", "sliding", "full")
    quantize(layers, kv_bits=None, **START)
    quantize(layers, 5, 64, 8)
    assert kinds(layers) == ["KVCache", "RotatingKVCache", "KVCache"]


def test_both_patches_go_together(ungated):
    if not installed("mlx-vlm") or not hasattr(
        importlib.import_module("mlx_vlm.generate"), "__path__"
    ):
        pytest.skip("the last layer is patched from mlx-vlm 0.6.0 on")
    for name in ("quantize-rotating", "vlm-quantize-last-layer"):
        ungated(catalogue.builtin().get(name))
    quantize, caches = function_and_caches("mlx_vlm")
    layers = filled(caches, "full", "sliding", "full")
    quantize(layers, 0, 64, 8)
    assert kinds(layers) == ["QuantizedKVCache", "RotatingKVCache", "KVCache"]
    layers = filled(caches, "full", "sliding", "full")
    quantize(layers, kv_bits=4, kv_quant_scheme="turboquant", **START)
    assert kinds(layers) == ["TurboQuantKVCache", "RotatingKVCache", "KVCache"]


def layers_that_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        quantize_rotating, "quantized", lambda original, cache, **kwargs: original(cache, **kwargs)
    )


def no_layer_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_last_layer, "spared", lambda count: count)


MUTANTS = {"quantize-rotating": layers_that_refuse, "vlm-quantize-last-layer": no_layer_is_the_last}
