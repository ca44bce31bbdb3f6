"""Saves a cache whose values have width 0."""

from typing import Any

from ....probes.kit import Result, Target, compare_loaded, mx, own_module


def probe(target: Target) -> Result:
    """Red if such a cache cannot be saved, or does not continue from its file."""
    caches = own_module(target)
    cache = [caches.KVCache()]
    feed(cache, 3)
    return compare_loaded(caches, cache, feed)


def feed(caches: list[Any], count: int) -> list[Any]:
    (cache,) = caches
    keys = mx.arange(count * 2, dtype=mx.float32).reshape(1, 1, count, 2)
    keys, values = cache.update_and_fetch(keys, mx.zeros((1, 1, count, 0)))
    return [cache.offset, keys.reshape(-1).tolist(), list(values.shape), str(values.dtype)]
