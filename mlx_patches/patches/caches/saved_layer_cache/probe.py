"""Saves a cache of DeepSeek V4.1, loads it, and compares the contents."""

from typing import Any

from ....probes.kit import Result, Target, compare_loaded, import_module, mx, own_module
from .patch import MODEL

WINDOW = 4


def probe(target: Target) -> Result:
    """Red if the cache cannot be loaded, or differs."""
    caches = own_module(target)
    model: Any = import_module(MODEL)
    cache = [model.LayerCache(WINDOW), caches.KVCache()]
    for length in (3, 6):
        feed(cache, length)
    return compare_loaded(caches, cache, feed)


def feed(cache: list[Any], count: int) -> list[Any]:
    layer, plain = cache
    window = layer.update_window(mx.arange(count * 2, dtype=mx.float32).reshape(1, count, 2))
    layer.pending_kv = window[:, :1]
    plain.update_and_fetch(*[mx.ones((1, 1, count, 2))] * 2)
    others = [layer.compress_kv, layer.index_k, layer.pending_gate]
    held = [window.tolist(), layer.pending_kv.tolist(), layer.window_size, layer.offset]
    return [type(layer).__name__, *held, [one is None for one in others], plain.offset]
