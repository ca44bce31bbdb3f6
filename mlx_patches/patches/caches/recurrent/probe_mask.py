"""Makes masks for a right-padded prompt with recurrent caches that were merged empty."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, own_class_of, require_names

_LENGTHS = [2, 5]
_CHUNKS = (3, 2)


def probe(target: Target) -> Result:
    """Red if a chunk's mask does not mark exactly the columns that hold tokens."""
    cache_class = require_methods(target, "merge", "prepare", "advance")
    cache: Any = make_merged_cache(target, cache_class)
    cache.prepare(lengths=_LENGTHS)
    fed = 0
    for chunk in _CHUNKS:
        mask = cache.make_mask(chunk)
        seen = None if mask is None else mask.tolist()
        wanted = [[fed + i < length for i in range(chunk)] for length in _LENGTHS]
        if seen != wanted:
            return Result(True, f"mask of tokens {fed} to {fed + chunk}: {seen}, not {wanted}")
        cache.advance(chunk)
        fed += chunk
    return Result(False, "every chunk's mask marks the rows' tokens")


def require_methods(target: Target, *methods: str) -> Any:
    cache_class = own_class_of(target)
    require_names(cache_class, *methods)
    return cache_class


def make_merged_cache(target: Target, cache_class: Any) -> Any:
    """Merge two empty caches, as the release's engine does to start a batch."""
    module = module_of(target)
    rows = [cache_class(2) for _ in _LENGTHS]
    merge = getattr(rows[0], "merge", None) or module.ArraysCache.merge
    try:
        return merge(rows)
    except StopIteration:
        raise NotApplicable("this release cannot merge empty recurrent caches") from None
