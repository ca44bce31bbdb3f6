"""Saves a cache whose values have width 0, as models without values of their own fill it."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import require_own


def probe(target: Target) -> Result:
    """Red where such a cache cannot be saved, or does not go on from its file."""
    require_own(target)
    caches = importlib.import_module(target.module)
    kept = caches.KVCache()
    feed(kept, 3)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "cache.safetensors"))
        caches.save_prompt_cache(file, [kept], {"own": "entry"})
        (loaded,), metadata = caches.load_prompt_cache(file, return_metadata=True)
        found = [feed(cache, 1) for cache in (kept, loaded)]
    if metadata != {"own": "entry"}:
        return Result(True, f"the file's metadata is {metadata}")
    return Result(found[0] != found[1], f"after a token: {found[1]}, not saved {found[0]}")


def feed(cache: Any, count: int) -> list[Any]:
    """Feed a cache ``count`` tokens; returns the offset, the keys, and the values' shape."""
    import mlx.core as mx

    keys = mx.arange(count * 2, dtype=mx.float32).reshape(1, 1, count, 2)
    keys, values = cache.update_and_fetch(keys, mx.zeros((1, 1, count, 0)))
    return [cache.offset, keys.reshape(-1).tolist(), list(values.shape), str(values.dtype)]
