"""Stores the caches of a single prompt, for a model with two caches per layer."""

from ....probes.kit import Result, Target, import_module, make_fed_cache, own_module

LENGTH = 5


def probe(target: Target) -> Result:
    """Red if the stored caches do not hold the prompt, or if there are none."""
    release = own_module(target)
    caches = import_module("mlx_vlm.models.cache")
    layer = caches.CacheList(*(make_fed_cache(caches.KVCache(), LENGTH) for _ in range(2)))
    (stored,) = release.snapshot_prompt_cache_row([layer]) or [None]
    lengths = [inner.offset for inner in getattr(stored, "caches", ())]
    return Result(lengths != [LENGTH] * 2, f"of {LENGTH} tokens, {lengths} are stored")
