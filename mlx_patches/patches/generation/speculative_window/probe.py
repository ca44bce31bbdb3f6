"""Feeds draft tokens to caches, trims some, and feeds other tokens; decodes recurrent models."""

from collections.abc import Sequence
from typing import Any

from ....probes.kit import Result, Target, import_module, module_of, mx

_WINDOW = 4
_DRAFTS = 3


def probe(target: Target) -> Result:
    """Red if a rejected token is attended to later, or an accepted one is missing."""
    if target.name == "speculative_generate_step":
        return probe_starts(module_of(target))
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


def probe_starts(module: Any) -> Result:
    """Red if a recurrent model is decoded, or a turn over full windows is refused."""
    caches: Any = import_module("mlx_lm.models.cache")
    kinds = (lambda: caches.RotatingKVCache(_WINDOW), lambda: caches.ArraysCache(1))
    for make, wanted in zip(kinds, (True, False), strict=True):
        model = Toy(make)
        kept = [*model.make_cache(), *model.make_cache()]
        if wanted:
            feed(kept, list(range(3 * _WINDOW)))
        prompt = mx.array([1, 2])
        steps = module.speculative_generate_step
        try:
            decoded = len(list(steps(prompt, model, model, prompt_cache=kept, max_tokens=4))) == 4
        except ValueError as error:
            decoded, name = False, f": {error}"
        else:
            name = ""
        if decoded != wanted:
            done = "decoded" if decoded else "refused"
            return Result(True, f"{type(kept[0]).__name__} is {done}{name}")
    return Result(False, "turns start with full windows, and recurrent models are refused")


class Toy:
    """A model of one layer that answers with the token it reads."""

    layers = (None,)

    def __init__(self, make: Any):
        self.make = make

    def make_cache(self) -> list[Any]:
        return [self.make()]

    def __call__(self, tokens: Any, cache: Any) -> Any:
        if hasattr(cache[0], "max_size"):
            keys = tokens[:, None, :, None].astype(mx.float32)
            cache[0].update_and_fetch(keys, keys)
        return (mx.arange(32) == tokens[..., None]).astype(mx.float32)
