"""Reads ``offset`` as attention does, updates the cache, and checks the value read before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Target
from ....probes import Result
from ....probes.fixtures import cache_of, keys_and_values, make


def probe(target: Target) -> Result:
    """Red where a captured ``offset`` changes when the cache is updated or trimmed."""
    return captured_moves(target, "offset", updates=True)


def captured_moves(target: Target, attribute: str, updates: bool) -> Result:
    """Red where a later operation on the cache changes the captured ``attribute``.

    Args:
        target: names the cache class (``BatchKVCache.offset``).
        attribute: the attribute to capture.
        updates: whether the attribute counts tokens, so that ``trim`` is checked, too.
    """
    import mlx.core as mx

    cache_class = cache_of(target)
    moved = []

    def watch(step: str, cache: Any, action: Callable[[], object]) -> None:
        captured = getattr(cache, attribute)
        before = captured.tolist()
        action()
        if captured.tolist() != before:
            moved.append(step)

    def make_fed_cache(left_padding: list[int], tokens: int) -> Any:
        cache = make(cache_class, left_padding)
        if tokens:
            cache.update_and_fetch(*keys_and_values(len(left_padding), tokens))
        return cache

    cache = make_fed_cache([1, 0], 0)
    watch("update_and_fetch", cache, lambda: cache.update_and_fetch(*keys_and_values(2, 4)))
    watch("decode", cache, lambda: cache.update_and_fetch(*keys_and_values(2, 1)))
    if updates and hasattr(cache, "trim") and cache.is_trimmable():
        watch("trim", cache, lambda: cache.trim(1))
    window = getattr(cache, "max_size", None)
    if window is not None:
        for _ in range(int(window) + 2):
            watch("decode", cache, lambda: cache.update_and_fetch(*keys_and_values(2, 1)))
        watch("chunk", cache, lambda: cache.update_and_fetch(*keys_and_values(2, 3)))
    if hasattr(cache_class, "prepare"):
        fresh = make(cache_class, [0, 0])
        watch("prepare", fresh, lambda: fresh.prepare(left_padding=[2, 0]))
        right = make(cache_class, [0, 0])
        right.prepare(lengths=[4, 2], right_padding=[0, 2])
        right.update_and_fetch(*keys_and_values(2, 4))
        watch("finalize", right, right.finalize)
    del mx
    steps = ", ".join(dict.fromkeys(moved))
    return Result(
        bool(moved),
        f"{steps} change the captured {attribute}" if moved else f"a captured {attribute} stays",
    )
