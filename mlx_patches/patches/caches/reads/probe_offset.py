"""Reads an attribute as attention does, updates the cache, and checks the value that was read."""

from collections.abc import Callable
from typing import Any

from ....probes.kit import Result, Target, make_batch, make_keys_and_values, own_class_of


def probe(target: Target) -> Result:
    """Red if a later operation on the cache changes an attribute that was read before."""
    attribute = target.name.partition(".")[2]
    cache_class = own_class_of(target)
    changed = []

    def watch(step: str, cache: Any, action: Callable[[], object]) -> None:
        captured = getattr(cache, attribute)
        before = captured.tolist()
        action()
        if captured.tolist() != before:
            changed.append(step)

    cache = make_batch(cache_class, [1, 0])
    watch("update_and_fetch", cache, lambda: cache.update_and_fetch(*make_keys_and_values(2, 4)))
    watch("decode", cache, lambda: cache.update_and_fetch(*make_keys_and_values(2, 1)))
    if hasattr(cache, "trim") and cache.is_trimmable():
        watch("trim", cache, lambda: cache.trim(1))
    window = getattr(cache, "max_size", None)
    if window is not None:
        for _ in range(int(window) + 2):
            watch("decode", cache, lambda: cache.update_and_fetch(*make_keys_and_values(2, 1)))
        watch("chunk", cache, lambda: cache.update_and_fetch(*make_keys_and_values(2, 3)))
    if hasattr(cache_class, "prepare"):
        fresh = make_batch(cache_class, [0, 0])
        watch("prepare", fresh, lambda: fresh.prepare(left_padding=[2, 0]))
        right = make_batch(cache_class, [0, 0])
        right.prepare(lengths=[4, 2], right_padding=[0, 2])
        right.update_and_fetch(*make_keys_and_values(2, 4))
        watch("finalize", right, right.finalize)
    if changed:
        return Result(True, f"{', '.join(dict.fromkeys(changed))} change the captured {attribute}")
    return Result(False, f"a captured {attribute} stays")
