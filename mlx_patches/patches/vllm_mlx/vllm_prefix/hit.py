"""vllm-mlx: wrong output or a hang after a prefix-cache hit.

Why: A hit on the whole prompt leaves no token to process, so the scheduler feeds the last one
    again: it is in the cache twice. A hit also returns the stored caches themselves, and a buffer
    with room at its end is written in place: the next request with the same prefix attends to
    tokens that the first one generated. A wrapped sliding window is cut back over tokens that it
    has dropped, which then count as zeros; up to 0.2.7 the result is a plain cache without a
    window.
How: The caches of a hit are checked against the number of tokens that they should hold, cut back to
    leave the prompt's last token to process, and copied for the request with new array objects. If
    they cannot be cut back exactly, the hit is treated as a miss.
Upstream: vllm-mlx 0.5.0 discards a hit that covers the whole prompt, and processes the prompt.
Retire when: vllm-mlx below 0.5.0 is no longer supported.
"""

import copy
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, result

# Attribute that marks a cache which lacks tokens that its offset counts.
INCOMPLETE = "_mlx_patches_incomplete"
# A cache has one of them; the host also stores entries without caches.
_OF_CACHES = ("offset", "state", "caches")


def cut_hit(hit: Any, prefixes: Any, tokens: Sequence[int], /) -> Any:
    """The caches of a prefix and the tokens that are left to feed, at least one; or a miss."""
    found, rest = hit
    if not found or not any(hasattr(layer, name) for layer in found for name in _OF_CACHES):
        return hit
    held = min(len(tokens) - len(rest), len(tokens) - 1)
    cut = cut_caches(found, held) if held > 0 else None
    if cut is None:
        if hasattr(prefixes, "_last_match_type"):
            prefixes._last_match_type = "miss"
        return None, tokens
    return cut, list(tokens[held:])


def cut_caches(caches: Sequence[Any], length: int) -> list[Any] | None:
    """A request's copies of caches, cut to ``length`` tokens; None if they cannot be cut."""
    layers = [layer for cache in caches for layer in getattr(cache, "caches", (cache,))]
    lengths = {int(layer.offset) for layer in layers if hasattr(layer, "offset")}
    if len(lengths) != 1 or any(hasattr(layer, INCOMPLETE) for layer in layers):
        return None
    excess = lengths.pop() - length
    if excess < 0 or (excess and not all(map(is_trimmable, layers))):
        return None
    return [copy_cut(cache, excess) for cache in caches]


def is_trimmable(layer: Any) -> bool:
    """Whether a cache's last tokens can be cut off exactly, by the same check as the host's."""
    check = getattr(layer, "is_trimmable", hasattr(layer, "trim"))
    return bool(check() if callable(check) else check)


def copy_cut(cache: Any, excess: int) -> Any:
    """A copy of a cache with its own array objects, without its last ``excess`` tokens."""
    taken = copy.copy(cache)
    if hasattr(cache, "caches"):
        taken.caches = type(cache.caches)(copy_cut(layer, excess) for layer in cache.caches)
        return taken
    for name in ("keys", "values", "cache"):
        if name in vars(taken):
            setattr(taken, name, make_handles(getattr(taken, name)))
    if excess:
        taken.trim(excess)
    return taken


def make_handles(value: Any) -> Any:
    """The same arrays as new array objects: an in-place write to one does not change the other."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(make_handles, value))
    return copy.copy(value)


def mark_cuts(cuts: Sequence[Any], caches: Sequence[Any], trim_by: int, /) -> Any:
    """The caches that the host has cut; wrapped windows without their oldest tokens are marked."""
    return [mark_cut(cut, layer, trim_by) for cut, layer in zip(cuts, caches, strict=True)]


def mark_cut(cut: Any, layer: Any, trim_by: int) -> Any:
    """A layer that the host has cut, of its original class; marked if it lacks tokens."""
    other = type(cut) is not type(layer)
    if other and is_trimmable(layer):
        return copy_cut(layer, trim_by)
    wrapped = hasattr(layer, "max_size") and not is_trimmable(layer)
    if other or hasattr(layer, INCOMPLETE) or (wrapped and trim_by > 1 and cut is not layer):
        setattr(cut, INCOMPLETE, True)
    return cut


def keep_marks(dequantized: Sequence[Any], caches: Sequence[Any], /) -> Any:
    """The caches that the host has dequantized, with their marks."""
    for own, layer in zip(dequantized, caches, strict=True):
        if hasattr(layer, INCOMPLETE):
            setattr(own, INCOMPLETE, True)
    return dequantized


_HOST = "vllm_mlx.memory_cache"
# Each has the defects of the ones after it.
_BODY = ("_dequantize_cache", "_trim_cache_offset", "MemoryAwarePrefixCache.fetch")

PATCH = Patch(
    id="vllm-prefix-hit",
    formerly="prefix-hit",
    targets=(
        *result(f"{_HOST}:MemoryAwarePrefixCache.fetch", cut_hit),
        *result(f"{_HOST}:_trim_cache_offset", mark_cuts, fingerprint_of=_BODY[1:]),
        *result(f"{_HOST}:_dequantize_cache", keep_marks, fingerprint_of=_BODY),
    ),
)
