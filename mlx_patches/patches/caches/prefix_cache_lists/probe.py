"""Stores the caches of a prompt that was processed alone, of a model with two in a layer."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import require_own

LENGTH = 5


def probe(target: Target) -> Result:
    """Red where the stored caches do not hold the prompt, or there are none."""
    require_own(target)
    release = importlib.import_module(target.module)
    caches = importlib.import_module("mlx_vlm.models.cache")
    layer = caches.CacheList(written(caches.KVCache()), written(caches.KVCache()))
    (stored,) = release.snapshot_prompt_cache_row([layer]) or [None]
    lengths = [one.offset for one in getattr(stored, "caches", ())]
    return Result(lengths != [LENGTH] * 2, f"of {LENGTH} tokens, {lengths} are stored")


def written(cache: Any) -> Any:
    """A cache of some tokens."""
    mx: Any = importlib.import_module("mlx.core")
    cache.update_and_fetch(*mx.random.normal((2, 1, 2, LENGTH, 4)))
    return cache
