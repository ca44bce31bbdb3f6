"""Filters or extends a left-padded recurrent batch, and checks the next mask."""

from typing import Any

from ....probes.kit import Result, Target, mx
from .probe_mask import require_methods

_PADDING = [4, 0, 2]
_FED = 3
_NEXT = 2


def probe(target: Target) -> Result:
    """Red if the mask is wrong for the batch's rows. A release may return no mask here."""
    operation = target.name.partition(".")[2]
    cache_class = require_methods(target, operation, "make_mask")
    cache = make_fed_cache(cache_class, _PADDING)
    if operation == "filter":
        cache.filter(mx.array([2, 0]))
        left = [2, 4]
    else:
        cache.extend(make_fed_cache(cache_class, None))
        left = [*_PADDING, 0]
    mask = cache.make_mask(_NEXT)
    seen = None if mask is None else mask.tolist()
    wanted = [[at >= padding - _FED for at in range(_NEXT)] for padding in left]
    return Result(seen not in (None, wanted), f"after {operation} the mask is {seen}")


def make_fed_cache(cache_class: Any, left_padding: list[int] | None) -> Any:
    """Make a batch after ``_FED`` positions; a single row if it has no padding."""
    cache = cache_class(1)
    cache[0] = mx.zeros((len(left_padding or [0]), 2))
    if left_padding is not None:
        cache.left_padding = mx.array(left_padding) - _FED
    return cache
