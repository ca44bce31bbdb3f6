"""Streams a second turn that shares a prefix with the first, over rotating caches."""

import sys
from typing import Any

from ....probes.kit import Result, Target, feed_one_by_one, import_module, mx, own_class_of
from ....probes.stream_generate import capture_options

# The window, how many tokens the first turn cached, and how many of them the second shares.
CASES = ((4, 8, 6), (16, 8, 5), (8, 8, 3))
_NEW = (90, 91, 92)


def probe(target: Target) -> Result:
    """Red if the second turn's caches do not hold its prefix."""
    kind = own_class_of(target)
    for window, held, shared in CASES:
        wrong = describe_difference(kind, window, held, shared)
        if wrong:
            return Result(True, f"window {window}, {held} tokens cut to {shared}: {wrong}")
    return Result(False, "the second turn's caches hold its prefix")


def describe_difference(kind: Any, window: int, held: int, shared: int) -> str:
    """Describe a token of the second turn that sees wrong tokens; empty if all are right."""
    kinds = import_module("mlx_vlm.models.cache")
    caches = [
        feed_one_by_one(kinds.KVCache(), held),
        feed_one_by_one(kinds.RotatingKVCache(max_size=window), held),
    ]
    prompt = [*range(1, shared + 1), *_NEW]
    given = get_turn_caches(kind, caches, list(range(1, held + 1)), prompt)
    if given is None:
        return ""
    for cache in given:
        step = mx.full((1, 1, 1, 1), float(shared + 1))
        keys = sorted(cache.update_and_fetch(step, step)[0].reshape(-1).tolist())
        first = max(1, shared + 2 - window) if hasattr(cache, "max_size") else 1
        if keys != list(range(first, shared + 2)):
            return f"token {shared + 1} sees {keys}"
    return ""


def get_turn_caches(
    kind: Any, caches: list[Any], tokens: list[int], prompt: list[int]
) -> list[Any] | None:
    """The caches that a turn receives; None if it does not reuse those of the last turn."""
    generate = import_module("mlx_vlm.generate").stream_generate
    module = sys.modules[generate.__module__]
    state = kind()
    state.update(tokens, caches)
    given = capture_options(module, input_ids=mx.array([prompt]), prompt_cache_state=state)[
        "prompt_cache"
    ]
    return list(given) if given and given[0] is caches[0] else None
