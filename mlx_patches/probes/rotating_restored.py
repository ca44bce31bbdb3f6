"""Saves and restores a rotating batch, before and after its window has wrapped, and goes on."""

from __future__ import annotations

from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result
from .batch_rotating_extract import _feed as feed
from .offset_alias import cache_of

_WINDOW = 4
_PROMPT = 3
_PADDING = [1, 0]


def probe(target: Target) -> Result:
    """Red where a restored batch lacks what it had, or goes on with other tokens."""
    batch_class = cache_of(target)
    if target.name.endswith("meta_state") and not hasattr(batch_class, "meta_state"):
        raise NotApplicable("the release saves no text")
    check = rotated_as_saved if target.name.endswith("meta_state") else goes_on
    for steps in (0, 1, 2 * _WINDOW):
        problem = check(batch_class, steps)
        if problem:
            return Result(True, f"after {steps} steps: {problem}")
    return Result(False, "a restored batch goes on as before")


def fed(batch_class: Any, steps: int) -> Any:
    """A batch that has a prompt and this many decode steps behind it."""
    cache = batch_class(_WINDOW, list(_PADDING))
    for count in (_PROMPT, *[1] * steps):
        feed(cache, numbers(cache, count))
    return cache


def numbers(cache: Any, count: int) -> list[list[int]]:
    """Tokens that carry their place in the batch."""
    start = cache._offset
    return [[start + i + 1 for i in range(count)] for _ in _PADDING]


def rotated_as_saved(batch_class: Any, steps: int) -> str:
    """What differs in ``rotated``; empty where nothing does."""
    cache = fed(batch_class, steps)
    copy = restored(cache)
    return "" if copy.rotated == cache.rotated else f"rotated {copy.rotated}, was {cache.rotated}"


def goes_on(batch_class: Any, steps: int) -> str:
    """What goes wrong as a restored batch gets a chunk and then a step."""
    cache = fed(batch_class, steps)
    copy = restored(cache)
    copy.rotated = cache.rotated  # the other target's
    try:
        for count in (2, 1):
            seen, wanted = (feed(one, numbers(one, count)) for one in (copy, cache))
            if seen != wanted:
                return f"sees {seen}, not {wanted}"
    except (AttributeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def restored(cache: Any) -> Any:
    """A new cache from the state of another."""
    kind = type(cache)
    meta = [cache.meta_state] if hasattr(kind, "meta_state") else []
    return kind.from_state(cache.state, *meta)
