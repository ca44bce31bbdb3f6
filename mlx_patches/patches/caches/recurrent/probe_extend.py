"""Merges empty recurrent caches, and extends them with written ones in both orders."""

from ....probes.kit import Result, Target, mx
from .probe_mask import make_merged_cache, require_methods

_NEW, _REMOVED = 3, 1


def probe(target: Target) -> Result:
    """Red if a row is missing, or holds another row's state."""
    kind = require_methods(target, "merge")
    make_merged_cache(target, kind)  # not every release merges empty caches
    for kept in (range(_NEW), range(_NEW - _REMOVED)):
        for order in (1, -1):
            empty = kind.merge([kind(2) for _ in range(_NEW)])
            empty.filter(mx.array(list(kept)))
            written = kind(2)
            written[0] = written[1] = mx.full((1, 2), 5)
            cache, other = (written, empty)[::order]
            cache.extend(other)
            held = [state[:, 0].tolist() for state in cache.cache]
            wanted = [5, *[0] * len(kept)][::order]
            if held != [wanted] * len(held):
                return Result(True, f"the rows hold {held}, not {wanted} each")
    return Result(False, "every row holds its own state")
