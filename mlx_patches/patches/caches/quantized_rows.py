"""What a quantized batch cache does with its rows, whatever its keys and values are made of.

Keys and values are trees of arrays of shape (rows, heads, tokens, ...): tuples of packed values,
scales and biases, or the named tuples of TurboQuant. Tokens are always on axis 2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

TOKENS = 2


def prepare(
    cache: Any, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None
) -> None:
    """Announce how the next prompt is padded, row by row.

    Raises:
        ValueError: left padding for a cache that holds tokens already.
    """
    import mlx.core as mx

    if left_padding is not None:
        if cache.keys is not None:
            raise ValueError(f"left padding can only be added to an empty {type(cache).__name__}")
        padding = mx.array(left_padding)
        cache.left_padding = cache.left_padding + padding
        cache.offset = cache.offset - padding
        settled(cache)
    if right_padding is not None and max(right_padding) > 0:
        cache._right_padding = mx.array(right_padding)


def finalize(cache: Any) -> None:
    """Roll each row's right padding to its front. The buffer's end stays where it is."""
    padding = right_padding(cache)
    if padding is None:
        return
    if cache.keys is not None:
        cache.keys, cache.values = mapped(
            lambda part: rolled(part, padding), (cache.keys, cache.values)
        )
    cache.offset = cache.offset - padding
    cache.left_padding = cache.left_padding + padding
    cache._right_padding = None
    settled(cache)


def extract(cache: Any, idx: int, solo: Any) -> Any:
    """``solo``, an empty cache for one row, with the tokens of row ``idx``."""
    import mlx.core as mx

    start = max(0, int(cache.left_padding[idx].item()))
    if cache.keys is None or start >= cache._idx:
        return solo
    solo.keys, solo.values = mapped(
        lambda part: mx.contiguous(part[idx : idx + 1, :, start : cache._idx]),
        (cache.keys, cache.values),
    )
    solo.offset = cache._idx - start
    return solo


def merge(empty: Callable[[list[int]], Any], rows: Sequence[Any]) -> Any:
    """One batch of solo caches, the longest row first to last, the others left-padded.

    Args:
        empty: makes the empty batch cache of rows with this left padding.
        rows: quantized caches of one row each; those that hold no token may be of any kind.
    """
    import mlx.core as mx

    lengths = [int(row.offset) if row.keys is not None else 0 for row in rows]
    longest = max(lengths)
    batch = empty([longest - length for length in lengths])
    trees = {
        index: taken((row.keys, row.values), 0, length)
        for index, (row, length) in enumerate(zip(rows, lengths, strict=True))
        if length
    }
    if trees:
        blank = taken(next(iter(trees.values())), 0, 0)
        padded = [
            mapped(lambda part, n=longest - length: _pad(part, n), trees.get(index, blank))
            for index, length in enumerate(lengths)
        ]
        batch.keys, batch.values = mapped(lambda *parts: mx.concatenate(parts), *padded)
        batch.offset = mx.array(lengths)
        batch._idx = longest
    return settled(batch)


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """The release's ``extend`` over two sides of which neither is empty or has unused room."""
    if cache.keys is None and other.keys is None:
        return original(cache, other)
    kind = cache if cache.keys is not None else other
    for side in (cache, other := copy.copy(other)):
        rows = side.left_padding.shape[0]
        tree = (side.keys, side.values)
        if side.keys is None:
            tree = mapped(lambda part, n=rows: _blank(part, n), (kind.keys, kind.values))
        side.keys, side.values = taken(tree, 0, side._idx)
    return original(cache, other)


def size(cache: Any) -> int:
    """How many tokens the longest row may hold."""
    return int(cache._idx)


def nbytes(cache: Any) -> int:
    """Memory of keys and values, in bytes, with the room that is not used yet."""
    from mlx.utils import tree_flatten

    if cache.keys is None:
        return 0
    return sum(part.nbytes for _, part in tree_flatten((cache.keys, cache.values)))


def right_padding(cache: Any) -> Any:
    """The right padding that was announced; None in a cache that was restored."""
    return cache.__dict__.get("_right_padding")


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """A tree of what ``function`` makes of the trees' arrays."""
    from mlx.utils import tree_map

    return tree_map(function, *trees)


def taken(tree: Any, start: int, end: int) -> Any:
    """The tokens from ``start`` to ``end``."""
    return mapped(lambda part: part[:, :, start:end], tree)


def rolled(part: Any, shifts: Any) -> Any:
    """Each row moved by its own number of tokens; what leaves at the end enters at the front."""
    import mlx.core as mx

    count = part.shape[TOKENS]
    places = (mx.arange(count)[None] - shifts[:, None]) % count
    places = places.reshape(-1, 1, count, *[1] * (part.ndim - TOKENS - 1))
    return mx.take_along_axis(part, places, axis=TOKENS)


def settled(cache: Any) -> Any:
    """The cache, after it has renewed what it keeps about its padding, where it does."""
    refresh = getattr(cache, "_refresh_fused_attention_eligibility", None)
    if refresh is not None:
        refresh()
    return cache


def _pad(part: Any, left: int) -> Any:
    import mlx.core as mx

    pads = [(0, 0)] * part.ndim
    pads[TOKENS] = (left, 0)
    return mx.pad(part, pads) if left else part


def _blank(part: Any, rows: int) -> Any:
    import mlx.core as mx

    return mx.zeros((rows, part.shape[1], 0, *part.shape[TOKENS + 1 :]), part.dtype)
