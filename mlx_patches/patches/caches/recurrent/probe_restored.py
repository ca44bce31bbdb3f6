"""Saves and restores empty and written recurrent caches, and compares their next masks."""

from typing import Any

from ....probes.kit import Result, Target, mx, restore_cache
from .probe_mask import require_methods

_SLOTS = 2
_TOKENS = 3


def probe(target: Target) -> Result:
    """Red if a restored cache cannot make a mask, or makes a different one."""
    cache_class = require_methods(target, "make_mask", "from_state")
    written = cache_class(_SLOTS)
    for slot in range(_SLOTS):
        written[slot] = mx.ones((1, _TOKENS))
    for kind, cache in (("empty", cache_class(_SLOTS)), ("written", written)):
        wanted = make_masks(cache)
        try:
            seen = make_masks(restore_cache(cache))
        except AttributeError as error:
            return Result(True, f"{kind}: {error}")
        if seen != wanted:
            return Result(True, f"{kind}: masks {seen}, not {wanted}")
    return Result(False, "a restored cache makes the same masks")


def make_masks(cache: Any) -> list[Any]:
    seen = []
    for _ in range(2):
        seen.append(cache.make_mask(_TOKENS))
        if hasattr(cache, "advance"):
            cache.advance(_TOKENS)
    return [None if mask is None else mask.tolist() for mask in seen]
