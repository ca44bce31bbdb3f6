"""Prefills a chunked cache in calls of many sizes, and checks that it keeps the current chunk."""

from ....probes.kit import Result, Target, mx, own_class_of, require_names

_CHUNK = 8
_TOKENS = 3 * _CHUNK


def probe(target: Target) -> Result:
    """Red if a token of the current chunk is missing."""
    cache_class = own_class_of(target)
    require_names(cache_class(_CHUNK), "start_position")
    for first in range(1, 2 * _CHUNK):
        for size in range(1, _CHUNK + 1):
            cache = cache_class(_CHUNK)
            cache.step = 4
            steps = ((start, start + size) for start in range(first, _TOKENS, size))
            for start, end in ((0, first), *steps):
                cache.maybe_trim_front()
                keys = mx.arange(float(start), end).reshape(1, 1, -1, 1)
                held = cache.update_and_fetch(keys, keys)[0].reshape(-1).tolist()
                wanted = [float(token) for token in range(start // _CHUNK * _CHUNK, end)]
                if held[-len(wanted) :] != wanted:
                    place = f"calls of {first}, then {size} tokens"
                    return Result(True, f"{place}: token {start} sees {held}, not {wanted}")
    return Result(False, "every token sees its chunk")
