"""Feeds draft tokens to caches in one call, trims some, and feeds other tokens."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, module_of, mx

_WINDOW = 4
_DRAFTS = 3


def probe(target: Target) -> Result:
    """Red if a rejected token is attended to later, or an accepted one is missing."""
    caches = module_of(target)
    for prompt in range(1, 3 * _WINDOW):
        for rejected in range(_DRAFTS + 1):
            layers = [caches.RotatingKVCache(_WINDOW), caches.KVCache()]
            solo = [caches.RotatingKVCache(_WINDOW), caches.KVCache()]
            accepted = list(range(prompt + 1 + _DRAFTS - rejected))
            feed(layers, list(range(prompt)))
            feed(layers, list(range(prompt, prompt + 1 + _DRAFTS)))
            feed(solo, accepted)
            caches.trim_prompt_cache(layers, rejected)
            if prompt >= _WINDOW:  # the step wraps the full window; nothing is trimmed
                feed(layers, [89])
                feed(solo, [89])
                caches.trim_prompt_cache(layers, 0)
            for tokens in ([90], [91, 92], [93]):
                seen, wanted = feed(layers, tokens), feed(solo, tokens)
                if seen != wanted:
                    place = f"{prompt} tokens, {rejected} drafts rejected"
                    return Result(True, f"{place}: the layers see {seen}, not {wanted}")
    return Result(False, "a rejected draft is never seen again")


def feed(layers: Sequence[Any], tokens: Sequence[int]) -> list[list[int]]:
    """Feed tokens; returns each layer's offset and the tokens that the last one attends to."""
    keys = mx.array(tokens, mx.float32).reshape(1, 1, -1, 1)
    seen = []
    for layer in layers:
        held = layer.update_and_fetch(keys, keys)[0].reshape(-1).tolist()
        window = getattr(layer, "max_size", layer.offset)
        # A decode step overwrites the oldest token in place, so a window is not in order.
        seen.append([layer.offset, *sorted(map(int, held[-window:]))])
    return seen
