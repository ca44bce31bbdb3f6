"""Saves and restores a rotating batch before and after its window wraps, then decodes."""

from typing import Any

from ....probes.kit import Result, Target, own_class_of, require_names, restore_cache
from .probe_extract import feed

_WINDOW = 4
_PROMPT = 3
_PADDING = [1, 0]


def probe(target: Target) -> Result:
    """Red if a restored batch has lost ``rotated``, or attends to the wrong tokens."""
    batch_class = own_class_of(target)
    check = compare_decoding
    if target.name.endswith("meta_state"):
        require_names(batch_class, "meta_state")
        check = compare_rotated
    for steps in (0, 1, 2 * _WINDOW):
        cache = batch_class(_WINDOW, list(_PADDING))
        for count in (_PROMPT, *[1] * steps):
            feed(cache, number_tokens(cache, count))
        problem = check(restore_cache(cache), cache)
        if problem:
            return Result(True, f"after {steps} steps: {problem}")
    return Result(False, "a restored batch decodes as before")


def number_tokens(cache: Any, count: int) -> list[list[int]]:
    start = cache._offset
    return [[start + i + 1 for i in range(count)] for _ in _PADDING]


def compare_rotated(copy: Any, cache: Any) -> str:
    return "" if copy.rotated == cache.rotated else f"rotated {copy.rotated}, was {cache.rotated}"


def compare_decoding(copy: Any, cache: Any) -> str:
    """Feed a restored batch a chunk, then a step; describe what goes wrong, if anything."""
    copy.rotated = cache.rotated  # restored by the target meta_state
    try:
        for count in (2, 1):
            seen, wanted = (feed(one, number_tokens(one, count)) for one in (copy, cache))
            if seen != wanted:
                return f"sees {seen}, not {wanted}"
    except (AttributeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
