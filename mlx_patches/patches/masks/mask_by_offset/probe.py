"""Feeds an attention layer a batch whose cache holds more columns than its rows have tokens."""

import sys
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, mx, require_names, tiny_of

# Both rows are padded, so each has fewer tokens than the cache has columns.
_PADDING = [4, 3]
_COLUMNS = 6


def probe(target: Target) -> Result:
    """Red if the layer raises on its mask, or an extra column of padding changes its output."""
    model = tiny_of(target)
    layer = attention_of(model.module, target)
    width = layer.q_proj.weight.shape[1]
    x = mx.random.normal((2, 1, width), key=mx.random.key(0))
    cache = make_filled_cache(layer)
    mask = cache.make_mask(1, return_array=True)
    places = mx.broadcast_to(cache.offset[None, :, None], (3, 2, 1))
    columns = mask.shape[-1]
    try:
        seen = layer(x, mask, cache, places)
        short = layer(x, mask[..., 1:], cut(make_filled_cache(layer)), places)
    except ValueError as error:
        return Result(True, f"with {columns} columns: {error}")
    distance = float(mx.abs(seen - short).max().item())
    return Result(
        not distance <= 1e-4, f"a column of padding changes the output by {distance:.2g}", distance
    )


def attention_of(model: Any, target: Target) -> Any:
    name = target.name.partition(".")[0]
    kind = getattr(sys.modules[target.module], name, None)
    found = [one for one in model.modules() if type(one) is kind]
    if not found:
        raise NotApplicable(f"no part of the tiny model is a {name}")
    return found[0]


def make_filled_cache(layer: Any) -> Any:
    caches = import_module("mlx_vlm.models.cache")
    require_names(caches, "BatchKVCache")
    cache = caches.BatchKVCache(list(_PADDING))
    heads = getattr(layer, "n_kv_heads", None) or layer.num_key_value_heads
    width = layer.k_proj.weight.shape[0] // heads
    shape = (2, heads, _COLUMNS, width)
    cache.update_and_fetch(
        mx.random.normal(shape, key=mx.random.key(1)), mx.random.normal(shape, key=mx.random.key(2))
    )
    return cache


def cut(cache: Any) -> Any:
    """Remove the batch's first column, which is padding in both rows."""
    cache.keys = cache.keys[..., 1:_COLUMNS, :]
    cache.values = cache.values[..., 1:_COLUMNS, :]
    cache._idx -= 1
    cache.left_padding = mx.array([pad - 1 for pad in _PADDING])
    return cache
