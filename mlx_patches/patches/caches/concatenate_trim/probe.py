"""Trims a cache, feeds it a token, and compares its contents."""

from ....probes.kit import Result, Target, make_fed_cache, own_class_of, require_own


def probe(target: Target) -> Result:
    """Red if a trimmed token is still there."""
    require_own(target)
    cache = make_fed_cache(own_class_of(target)(), 5)
    cache.trim(2)
    held = make_fed_cache(cache, 1).keys.reshape(-1).tolist()
    return Result(held != [1, 2, 3, 1], f"after tokens 1 to 5, a trim of two, and 1: {held}")
