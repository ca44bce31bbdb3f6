"""Makes a mask from a list or tuple of caches, and from its first cache."""

from typing import Any

from ....probes.kit import Result, Target, import_module, mx, require_own

_LEFT_PADDING = [2, 0]


def probe(target: Target) -> Result:
    """Red if the mask of a list of caches differs from the mask of its first cache."""
    create = require_own(target)
    caches = import_module(f"{target.module.rpartition('.')[0]}.cache")
    wrong = []
    makers = [lambda: caches.BatchKVCache(_LEFT_PADDING), caches.KVCache]
    if hasattr(caches, "BatchRotatingKVCache"):
        makers.append(lambda: caches.BatchRotatingKVCache(8, _LEFT_PADDING))
    for make in makers:
        for tokens in (1, 5):
            for kind in (list, tuple):
                cache = kind((make(), make()))
                if not same(mask_of(create, tokens, cache), mask_of(create, tokens, cache[0])):
                    wrong.append(f"{type(cache[0]).__name__}, {tokens} tokens, {kind.__name__}")
    if wrong:
        return Result(True, f"another mask for {', '.join(wrong)}")
    return Result(False, "a list of caches has its first cache's mask")


def mask_of(create: Any, tokens: int, cache: Any) -> Any:
    return create(mx.zeros((2, tokens, 4)), cache)


def same(one: Any, other: Any) -> bool:
    """True for equal masks: equal arrays, the same string, or both None."""
    if isinstance(one, mx.array) and isinstance(other, mx.array):
        return bool(mx.array_equal(one, other).item())
    return type(one) is type(other) and one == other
