"""Reads a cache's ``state``, updates the cache, and checks that the snapshot is unchanged."""

from collections.abc import Callable
from typing import Any

from ....probes.kit import (
    Result,
    Target,
    make_batch,
    make_keys_and_values,
    mx,
    own_class_of,
    require_own,
)

_WINDOW = 8


def probe(target: Target) -> Result:
    """Red if a later update of the cache changes the snapshot."""
    require_own(target)
    cache_class = own_class_of(target)
    if cache_class.__name__ == "ArraysCache":
        return _probe_slots(cache_class)
    changed = []
    for filled in (_WINDOW - 2, _WINDOW, _WINDOW + 3):
        for name, step in _STEPS.items():
            cache = _make_cache(cache_class)
            for _ in range(filled):
                _feed(cache, 1)
            if name == "trim" and not cache.is_trimmable():
                continue
            snapshot = cache.state
            before = _read_values(snapshot)
            step(cache)
            if _read_values(snapshot) != before:
                changed.append(name)
    if changed:
        return Result(True, f"a snapshot changes in {', '.join(dict.fromkeys(changed))}")
    return Result(False, "snapshots are unchanged")


def _make_cache(cache_class: Any) -> Any:
    name = cache_class.__name__
    if name.startswith("Batch"):
        return make_batch(cache_class, [1, 0], _WINDOW)
    if name == "RotatingKVCache":
        return cache_class(_WINDOW)
    if name == "ChunkedKVCache":
        return cache_class(64)
    return cache_class()


def _feed(cache: Any, tokens: int) -> None:
    rows = 2 if type(cache).__name__.startswith("Batch") else 1
    keys, values = make_keys_and_values(rows, tokens)
    scale = float(getattr(cache, "_fed", 0) + 1)  # a different value per token
    cache._fed = scale
    cache.update_and_fetch(keys * scale, values * scale)


def _trim_and_feed(cache: Any) -> None:
    cache.trim(2)
    _feed(cache, 1)


_STEPS: dict[str, Callable[[Any], None]] = {
    "decode": lambda cache: _feed(cache, 1),
    "chunk": lambda cache: _feed(cache, 3),
    "trim": _trim_and_feed,
}


def _probe_slots(cache_class: Any) -> Result:
    cache = cache_class(2)
    cache[0], cache[1] = mx.zeros((1, 2)), mx.ones((1, 2))
    snapshot = cache.state
    before = _read_values(snapshot)
    cache[0] = mx.full((1, 2), 7.0)
    if _read_values(snapshot) != before:
        return Result(True, "a snapshot changes when a slot is set")
    return Result(False, "snapshots are unchanged")


def _read_values(tree: Any) -> Any:
    if isinstance(tree, (list, tuple)):
        return [_read_values(item) for item in tree]
    return tree.tolist() if hasattr(tree, "tolist") else tree
