"""A rotating batch misreads a prompt that it gets in pieces, one of them of one token.

Why
    A ``BatchRotatingKVCache`` takes every piece of one token for a decode step. If right padding
    is pending, it raises "finalize() should be called before deocoding with
    BatchRotatingKVCache": every request of the batch fails, in each family with a sliding
    window. If none is, the buffer may wrap. ``make_mask`` of the next piece counts padding from
    where the buffer is written, but the piece is joined to a buffer in order of age: a row that
    has padding left does not see its oldest tokens.
How
    Until ``finalize`` a piece of one token is written like any other piece, and its mask is that
    of the first of two tokens. The mask of a piece is that of a buffer in order of age. A decode
    step stays as it is.
Upstream
    Not fixed in mlx-lm 0.32.2. mlx-vlm 0.6.5 checks the pending padding; the mask is not fixed in
    mlx-vlm 0.7.10.
Retire when
    ``update_and_fetch`` checks ``_lengths``, and ``make_mask`` whether the buffer has wrapped, in
    every supported release.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import CACHES

_BATCH = "BatchRotatingKVCache"
# The methods that tell a piece from a decode step.
_BODY = (f"{_BATCH}.update_and_fetch", f"{_BATCH}.make_mask")


def updated(update: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """Write one token (rows, heads, 1, width), as a piece of a prompt while padding is pending."""
    if not is_piece(cache):
        return update(cache, keys, values)
    return cache._update_concat(keys, values)


def masked(make_mask: Callable[..., Any], cache: Any, N: int, *args: Any, **kwargs: Any) -> Any:
    """The mask (rows, 1, N, columns) of N tokens, its columns in ``_update_concat``'s order."""
    if not is_misread(cache, N):
        return make_mask(cache, N, *args, **kwargs)
    cache = in_order(cache)
    if N > 1:
        return make_mask(cache, N, *args, **kwargs)
    return make_mask(cache, 2, *args, **kwargs)[..., :1, :-1]


def is_piece(cache: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether the next token belongs to a prompt whose right padding is pending."""
    held = cache.__dict__
    return "_lengths" in held and held["_lengths"] is not None


def is_misread(cache: Any, N: int, *args: Any, **kwargs: Any) -> bool:
    """Whether the next ``N`` tokens are a piece whose mask the release may get wrong."""
    return bool(cache.rotated) if N > 1 else is_piece(cache)


def in_order(cache: Any) -> Any:
    """A view of a cache whose columns count in order of age, as a piece is joined to them."""
    if not cache.rotated:
        return cache
    view = copy.copy(cache)
    view._idx, view.rotated = cache.keys.shape[2], False
    return view


PATCH = Patch(
    id="rotating-last-chunk",
    formerly="rotating-last-piece",
    every_model=True,
    summary="mlx-lm and mlx-vlm sliding windows: wrong output in a batch if a chunk has one token",
    targets=tuple(
        target
        for place in CACHES
        for target in (
            Target(*place, f"{_BATCH}._update_in_place", around(updated), _BODY, when=is_piece),
            Target(*place, f"{_BATCH}.make_mask", around(masked), _BODY, when=is_misread),
        )
    ),
)
