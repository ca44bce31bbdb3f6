"""Saves a cache of DeepSeek V4.1, loads it and compares what both hold."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import require_own
from .patch import MODEL

WINDOW = 4


def probe(target: Target) -> Result:
    """Red where the cache cannot be loaded, or is another one."""
    require_own(target)
    caches = importlib.import_module(target.module)
    try:
        model: Any = importlib.import_module(MODEL)
    except ModuleNotFoundError as error:
        raise NotApplicable("this release has no deepseek_v41") from error
    kept = [model.LayerCache(WINDOW), caches.KVCache()]
    for length in (3, 6):
        feed(kept, length)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "cache.safetensors"))
        caches.save_prompt_cache(file, kept, {"own": "entry"})
        try:
            loaded, metadata = caches.load_prompt_cache(file, return_metadata=True)
        except KeyError as error:
            return Result(True, f"no class {error} when it is loaded")
        found = [feed(cache, 1) for cache in (kept, loaded)]
    if metadata != {"own": "entry"}:
        return Result(True, f"the file's metadata is {metadata}")
    return Result(found[0] != found[1], f"after a token: {found[1]}, not saved {found[0]}")


def feed(cache: list[Any], count: int) -> list[Any]:
    """Feed the caches ``count`` tokens; what both hold."""
    import mlx.core as mx

    layer, plain = cache
    window = layer.update_window(mx.arange(count * 2, dtype=mx.float32).reshape(1, count, 2))
    layer.pending_kv = window[:, :1]
    plain.update_and_fetch(*[mx.ones((1, 1, count, 2))] * 2)
    others = [layer.compress_kv, layer.index_k, layer.pending_gate]
    held = [window.tolist(), layer.pending_kv.tolist(), layer.window_size, layer.offset]
    return [type(layer).__name__, *held, [one is None for one in others], plain.offset]
