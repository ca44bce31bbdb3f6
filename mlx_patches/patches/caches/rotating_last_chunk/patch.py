"""mlx-lm and mlx-vlm sliding windows: wrong output in a batch if a chunk has one token.

Why: ``BatchRotatingKVCache`` takes every chunk of one token for a decode step. If right padding is
    pending, it raises "finalize() should be called before deocoding with BatchRotatingKVCache":
    every request of the batch fails, in each family with a sliding window. If none is pending, the
    buffer may wrap. ``make_mask`` of the next chunk then counts padding from the write position,
    but the chunk is joined to a buffer in order of age: a row that still has padding does not see
    its oldest tokens.
How: Until ``finalize`` a chunk of one token is written like any other chunk, with the mask of the
    first of two tokens. The mask of a chunk is computed for a buffer in order of age. Decode steps
    do not change.
Upstream: Not fixed in mlx-lm 0.32.2. mlx-vlm 0.6.5 checks the pending padding; the mask is not
    fixed in mlx-vlm 0.7.10.
Retire when: ``update_and_fetch`` checks ``_lengths``, and ``make_mask`` whether the buffer has
    wrapped, in every supported release.
"""

import copy
from typing import Any

from ....core.verbs import Function, Patch, in_caches, wrap

_BATCH = "BatchRotatingKVCache"
# The methods that distinguish a chunk from a decode step.
_BODY = (f"{_BATCH}.update_and_fetch", f"{_BATCH}.make_mask")


def write_token(update: Function, cache: Any, keys: Any, values: Any) -> Any:
    """Write one token (rows, heads, 1, width), as a prompt chunk if padding is pending."""
    if not is_chunk(cache):
        return update(cache, keys, values)
    return cache._update_concat(keys, values)


def mask_in_order(make_mask: Function, cache: Any, N: int, *args: Any, **kwargs: Any) -> Any:
    """The mask (rows, 1, N, columns) of N tokens, with columns in ``_update_concat``'s order."""
    if not is_mask_wrong(cache, N):
        return make_mask(cache, N, *args, **kwargs)
    cache = view_in_order(cache)
    if N > 1:
        return make_mask(cache, N, *args, **kwargs)
    return make_mask(cache, 2, *args, **kwargs)[..., :1, :-1]


def is_chunk(cache: Any, /) -> bool:
    """Whether the next token belongs to a prompt whose right padding is pending."""
    held = cache.__dict__
    return "_lengths" in held and held["_lengths"] is not None


def is_mask_wrong(cache: Any, N: int, /) -> bool:
    """Whether the next ``N`` tokens are a chunk whose mask may be wrong."""
    return bool(cache.rotated) if N > 1 else is_chunk(cache)


def view_in_order(cache: Any) -> Any:
    """A view of a cache with its columns in order of age, as a chunk is joined to them."""
    if not cache.rotated:
        return cache
    view = copy.copy(cache)
    view._idx, view.rotated = cache.keys.shape[2], False
    return view


PATCH = Patch(
    id="rotating-last-chunk",
    formerly="rotating-last-piece",
    every_model=True,
    targets=(
        *wrap(
            in_caches(f"{_BATCH}._update_in_place"),
            write_token,
            fingerprint_of=_BODY,
            when=is_chunk,
        ),
        *wrap(
            in_caches(f"{_BATCH}.make_mask"),
            mask_in_order,
            fingerprint_of=_BODY,
            when=is_mask_wrong,
        ),
    ),
)
