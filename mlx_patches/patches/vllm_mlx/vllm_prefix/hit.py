"""A prompt that vllm-mlx finds in its prefix cache is answered from a wrong context.

Why
    A hit that covers the whole prompt leaves no token to process, so the scheduler feeds the
    last one again: it is in the cache twice. A hit also returns the stored caches themselves, and
    a buffer with room at its end is written in place: the next request with the same prefix reads
    tokens that the first one generated. A sliding-window cache that has wrapped is cut back over
    tokens that it has dropped, which are then read as zeros; up to 0.2.7 cutting it back returns a
    plain cache without a window.
How
    The caches of a hit are checked against the number of tokens that they should hold, cut back
    to leave the prompt's last token to process, and copied for the request with new array
    objects. If they cannot be cut back exactly, the hit is treated as a miss.
Upstream
    vllm-mlx 0.5.0 discards a hit that covers the whole prompt, and processes the prompt.
Retire when
    vllm-mlx below 0.5.0 is no longer supported.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ....core.patch import Patch, Target, around

# Attribute that marks a cache which lacks tokens that its offset counts.
INCOMPLETE = "_mlx_patches_incomplete"


def fetch_and_cut(fetch: Any, prefixes: Any, tokens: Sequence[int]) -> Any:
    """The caches of a prefix and the tokens that are left to feed, at least one; or a miss."""
    found, rest = fetch(prefixes, tokens)
    if not found or not any(map(is_cache, found)):
        return found, rest
    held = min(len(tokens) - len(rest), len(tokens) - 1)
    cut = cut_to(found, held) if held > 0 else None
    if cut is None:
        if hasattr(prefixes, "_last_match_type"):
            prefixes._last_match_type = "miss"
        return None, tokens
    return cut, list(tokens[held:])


def is_cache(layer: Any) -> bool:
    """Whether a layer is a cache; the host also stores entries without caches."""
    return any(hasattr(layer, name) for name in ("offset", "state", "caches"))


def cut_to(caches: Sequence[Any], length: int) -> list[Any] | None:
    """Copies of caches for a request, cut to ``length`` tokens; None if they cannot be cut."""
    layers = [layer for cache in caches for layer in getattr(cache, "caches", (cache,))]
    lengths = {int(layer.offset) for layer in layers if hasattr(layer, "offset")}
    if len(lengths) != 1 or any(hasattr(layer, INCOMPLETE) for layer in layers):
        return None
    excess = lengths.pop() - length
    if excess < 0 or (excess and not all(map(trimmable, layers))):
        return None
    return [copy_cut(cache, excess) for cache in caches]


def trimmable(layer: Any) -> bool:
    """Whether a cache's last tokens can be cut off exactly, by the same check as the host's."""
    said = getattr(layer, "is_trimmable", hasattr(layer, "trim"))
    return bool(said() if callable(said) else said)


def copy_cut(cache: Any, excess: int) -> Any:
    """A copy of a cache with its own array objects, without its last ``excess`` tokens."""
    taken = copy.copy(cache)
    if hasattr(cache, "caches"):
        taken.caches = type(cache.caches)(copy_cut(layer, excess) for layer in cache.caches)
        return taken
    for name in ("keys", "values", "cache"):
        if name in vars(taken):
            setattr(taken, name, new_handles(getattr(taken, name)))
    if excess:
        taken.trim(excess)
    return taken


def new_handles(value: Any) -> Any:
    """The same arrays as new array objects: an in-place write to one does not change the other."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(new_handles, value))
    return copy.copy(value)


def cut_back(trim: Any, cache: Sequence[Any], trim_by: int) -> Any:
    """Cut caches back as the host does, and mark wrapped windows that lack their oldest tokens."""
    return [
        cut_layer(layer, cut, trim_by)
        for layer, cut in zip(cache, trim(cache, trim_by), strict=True)
    ]


def cut_layer(layer: Any, cut: Any, trim_by: int) -> Any:
    """A layer that the host has cut, of its original class; marked if it lacks tokens."""
    other = type(cut) is not type(layer)
    if other and trimmable(layer):
        return copy_cut(layer, trim_by)
    wrapped = hasattr(layer, "max_size") and not trimmable(layer)
    if other or hasattr(layer, INCOMPLETE) or (wrapped and trim_by > 1 and cut is not layer):
        setattr(cut, INCOMPLETE, True)
    return cut


def dequantized(restore: Any, cache: Sequence[Any]) -> Any:
    """Dequantize caches as the host does, and keep their marks."""
    restored = restore(cache)
    for layer, own in zip(cache, restored, strict=True):
        if hasattr(layer, INCOMPLETE):
            setattr(own, INCOMPLETE, True)
    return restored


_HOST = ("vllm-mlx", "vllm_mlx.memory_cache")
# Each has the defects of those behind it.
_BODY = ("_dequantize_cache", "_trim_cache_offset", "MemoryAwarePrefixCache.fetch")

PATCH = Patch(
    id="vllm-prefix-hit",
    formerly="prefix-hit",
    every_model=True,
    summary="vllm-mlx: wrong output or a hang after a prefix-cache hit",
    targets=(
        Target(*_HOST, "MemoryAwarePrefixCache.fetch", around(fetch_and_cut)),
        Target(*_HOST, "_trim_cache_offset", around(cut_back), fingerprint_of=_BODY[1:]),
        Target(*_HOST, "_dequantize_cache", around(dequantized), fingerprint_of=_BODY),
    ),
)
