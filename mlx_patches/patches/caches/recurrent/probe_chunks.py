"""Makes a recurrent cache's masks for prompt chunks that are shorter than its left padding."""

from ....probes.kit import NotApplicable, Result, Target, mx
from .probe_mask import require_methods

_PADDING = [7, 0, 2]
_CHUNKS = (3, 3, 3, 1)


def probe(target: Target) -> Result:
    """Red if a chunk's mask does not mark exactly the columns that hold tokens."""
    cache_class = require_methods(target, "make_mask")
    try:
        cache_class(1, left_padding=_PADDING).make_mask(1)
    except TypeError as error:  # mlx-lm 0.28.0
        raise NotApplicable(f"make_mask fails on a padded cache: {error}") from None
    cache = cache_class(1, left_padding=_PADDING)
    fed = 0
    for chunk in _CHUNKS:
        mask = cache.make_mask(chunk)
        seen = [[True] * chunk] * len(_PADDING) if mask is None else mask.tolist()
        wanted = [[fed + i >= padding for i in range(chunk)] for padding in _PADDING]
        if seen != wanted:
            return Result(True, f"mask of positions {fed} to {fed + chunk}: {seen}, not {wanted}")
        cache[0] = mx.zeros((len(_PADDING), 1))
        if hasattr(cache, "advance"):
            cache.advance(chunk)
        fed += chunk
    return Result(False, "every chunk's mask marks the rows' tokens")
