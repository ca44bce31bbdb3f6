"""Looks up a prompt that the server's prompt cache holds in full."""

from typing import Any

from ....probes.kit import Result, Target, import_module, make_fed_cache, mx, own_class_of

_MODEL = "tiny"
_PROMPT = [5, 9, 2, 7]
_PREFIX = 2


def probe(target: Target) -> Result:
    """Red if no token is left to feed, or the caches do not hold exactly those before it."""
    caches = import_module("mlx_lm.models.cache")
    kind = own_class_of(target)
    problem = check_trimmable(kind, caches) or check_recurrent(kind, caches)
    return Result(bool(problem), problem or "the last token is left to feed")


def check_trimmable(prompts_class: Any, caches: Any) -> str:
    """Describe a wrong hit on caches that can be trimmed; empty if it is right."""
    prompts = prompts_class()
    prompts.insert_cache(_MODEL, _PROMPT, [make_fed_cache(caches.KVCache(), len(_PROMPT))])
    found, rest = prompts.fetch_nearest_cache(_MODEL, list(_PROMPT))
    if list(rest) != _PROMPT[-1:]:
        return f"left to feed: {rest}, not {_PROMPT[-1:]}"
    held = found[0].keys[0, 0, : found[0].offset, 0].tolist()
    return "" if held == [1.0, 2.0, 3.0] else f"the cache holds tokens {held}"


def check_recurrent(prompts_class: Any, caches: Any) -> str:
    """The same for caches that cannot be trimmed; the cache also holds a prefix of the prompt."""
    prompts = prompts_class()
    for length in (_PREFIX, len(_PROMPT)):
        cache = caches.ArraysCache(1)
        cache[0] = mx.full((1, 1), length)
        prompts.insert_cache(_MODEL, _PROMPT[:length], [cache])
    found, rest = prompts.fetch_nearest_cache(_MODEL, list(_PROMPT))
    held = 0 if found is None else found[0][0].item()
    if not rest or list(rest) != _PROMPT[held:]:
        return f"recurrent: left to feed {rest}, and the cache holds {held} tokens"
    return ""
