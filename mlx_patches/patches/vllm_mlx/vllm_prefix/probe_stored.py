"""Stores one row of a batch in vllm-mlx's prefix cache, drops the batch, and reads memory."""

import gc
from typing import Any

from ....probes.kit import Result, Target, class_of, module_of, mx

ROWS, TOKENS = 16, 500
# Bytes that may stay alive beside the entry itself.
_SLACK = 64 * 1024


def probe(target: Target) -> Result:
    """Red if more than the row stays alive, or the entry counts as too small."""
    kind, config = class_of(target), module_of(target).MemoryCacheConfig()
    prefixes = kind(model=object(), config=config)
    gc.collect()  # earlier code in this process may have left arrays in cycles
    before = mx.get_active_memory()
    layers, size = make_row()
    prefixes.store(list(range(TOKENS)), layers)
    del layers
    gc.collect()
    mx.clear_cache()
    alive = mx.get_active_memory() - before
    counted = prefixes._current_memory
    detail = f"an entry of {size:,} bytes keeps {alive:,} alive and counts as {counted:,}"
    return Result(alive > size + _SLACK or counted < size, detail, alive)


def make_row(dtype: Any = None) -> tuple[list[Any], int]:
    """Make one row's caches, views of a batch's arrays; returns them and the row's own bytes."""
    from mlx_lm.models.cache import ArraysCache, KVCache

    dtype = dtype or mx.float32
    keys = mx.random.normal((ROWS, 2, 512, 64), key=mx.random.key(0)).astype(dtype)
    states = mx.random.normal((ROWS, 4, 64, 64), key=mx.random.key(1)).astype(dtype)
    values = keys * 2
    mx.eval(keys, values, states)
    attention, recurrent = KVCache(), ArraysCache(1)
    attention.keys, attention.values = keys[3:4], values[3:4]
    attention.offset = TOKENS
    recurrent[0] = states[3:4]
    own = sum(array[3:4].nbytes for array in (keys[:, :, :TOKENS], values[:, :, :TOKENS], states))
    return [attention, recurrent], own
