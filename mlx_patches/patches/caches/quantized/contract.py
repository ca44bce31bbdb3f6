"""What a quantized batch cache holds, and what each of its methods does.

``affine`` and ``turbo`` repair the releases' classes where they break this contract; the code
here is what both need. ``R`` is the number of rows, ``H`` of key-value heads, ``D`` the width of
a head, ``T`` the tokens that the buffer has room for.

What a cache holds
    ``keys``, ``values``: None in a cache that was never written, else a tree of arrays with rows
    on axis 0 and tokens on axis 2. Affine: packed values (R, H, T, D * bits / 32) of uint32,
    scales and biases (R, H, T, D / group_size). TurboQuant: named tuples, of norms (R, H, T)
    and indices (R, H, T, words), or of two such for channels of few and of more bits.
    ``_idx``: how many tokens of the buffer are in use, the same for every row; an int.
    ``left_padding``: (R,) integers. Row ``r`` holds the tokens from ``left_padding[r]`` to
    ``_idx``; what is before them means nothing.
    ``offset``: (R,) integers, ``_idx - left_padding``: the position of each row's next token.
    ``_right_padding``: (R,) integers while a right-padded prompt is fed, else None.

What its methods do
    ``prepare(left_padding, lengths, right_padding)`` says how the next prompt is padded;
    left padding is for a cache that was never written. ``finalize()`` turns the right padding
    into left padding; ``_idx`` stays. No row joins or leaves between these two.
    ``merge(rows)`` makes a batch of caches of one row; ``extract(row)`` gives one back. What
    was packed stays as it is, bit for bit; a row of floats is quantized like the others.
    ``extend(other)`` adds the rows of another batch; ``filter(rows)`` keeps these alone, and
    drops the padding that all of them have. ``trim(n)`` takes the last ``n`` tokens off each
    row, or as many as there are, and says how many.
    ``state`` and ``meta_state`` say all that ``from_state`` needs to make the same cache again,
    in arrays and in text. ``make_mask(n)`` gives the mask of the next ``n`` tokens, that
    broadcasts to (R, 1, n, _idx + n) and leaves the padding out.
    ``size()`` is ``_idx``; ``nbytes`` the memory of keys and values, with unused room (affine)
    or without (TurboQuant); ``empty()`` is whether the cache was never written. A row that
    holds no token, or a batch that was never written, goes through all of these like any
    other: it is all padding.

None of them runs in a decode step but ``make_mask``, which reads nothing from the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ....core.patch import Factory, Target

TOKENS = 2  # the axis


class BatchClass(NamedTuple):
    """A batch cache class of mlx-vlm.

    Args:
        module: the module that defines it.
        name: the class.
    """

    module: str
    name: str

    def target(
        self, attribute: str, factory: Factory, bodies: Sequence[str], adds: bool = False
    ) -> Target:
        """A target at one attribute, with the bodies of these methods."""
        return Target(
            "mlx-vlm",
            self.module,
            f"{self.name}.{attribute}",
            factory,
            body=tuple(f"{self.name}.{body}" for body in bodies),
            adds=adds,
        )

    def added(self, attribute: str, factory: Factory) -> Target:
        """A target at an attribute that releases may lack."""
        return self.target(attribute, factory, [attribute, "update_and_fetch"], adds=True)


# -- methods ---------------------------------------------------------------------------------


def prepare(
    cache: Any, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None
) -> None:
    """Say how the next prompt is padded: (R,) integers, or None.

    Raises:
        ValueError: left padding for a cache that holds tokens already.
    """
    import mlx.core as mx

    if left_padding is not None:
        if cache.keys is not None:
            raise ValueError(f"left padding can only be added to an empty {type(cache).__name__}")
        add_left_padding(cache, mx.array(left_padding))
    if right_padding is not None and max(right_padding) > 0:
        cache._right_padding = mx.array(right_padding)


def finalize(cache: Any) -> None:
    """Roll each row's right padding to its front. The buffer's end stays where it is."""
    padding = read_right_padding(cache)
    if padding is None:
        return
    if cache.keys is not None:
        cache.keys, cache.values = map_arrays(
            lambda part: roll_rows(part, padding), (cache.keys, cache.values)
        )
    add_left_padding(cache, padding)
    cache._right_padding = None


def extract(cache: Any, idx: int, solo: Any) -> Any:
    """``solo``, an empty cache for one row, with the tokens of row ``idx``."""
    start = max(0, int(cache.left_padding[idx].item()))
    if cache.keys is None or start >= cache._idx:
        return solo
    solo.keys, solo.values = copy_row((cache.keys, cache.values), idx, start, cache._idx)
    solo.offset = cache._idx - start
    return solo


def merge(make_empty: Callable[[list[int]], Any], rows: Sequence[Any]) -> Any:
    """One batch of caches of one row each, left-padded to the longest.

    Args:
        make_empty: makes the empty batch cache of rows with this left padding.
        rows: quantized caches of one row; those that hold no token may be of any kind.
    """
    import mlx.core as mx

    lengths = [int(row.offset) if row.keys is not None else 0 for row in rows]
    longest = max(lengths)
    batch = make_empty([longest - length for length in lengths])
    written = next((row for row, length in zip(rows, lengths, strict=True) if length), None)
    if written is not None:
        blank = slice_tokens((written.keys, written.values), 0)
        trees = [
            slice_tokens((row.keys, row.values), length) if length else blank
            for row, length in zip(rows, lengths, strict=True)
        ]
        batch.keys, batch.values = concatenate_rows(trees, lengths)
        batch.offset = mx.array(lengths)
        batch._idx = longest
    return refresh_padding_flag(batch)


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """The release's ``extend`` over two sides of which neither is empty or has unused room."""
    if cache.keys is None and other.keys is None:
        return original(cache, other)
    written = cache if cache.keys is not None else other
    own, others = fill_side(cache, written), fill_side(other, written)
    other = copy.copy(other)
    cache.keys, cache.values = own
    other.keys, other.values = others
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


# -- what a cache says about its rows -----------------------------------------------------------


def is_quantized(cache: Any) -> bool:
    """Whether a cache, of one row or of many, holds keys and values in few bits."""
    return hasattr(cache, "bits")


def quantize_alike(
    rows: Sequence[Any],
    read_settings: Callable[[Any], dict[str, Any] | None],
    quantize: Callable[[Any, dict[str, Any]], Any],
) -> tuple[dict[str, Any], list[Any]]:
    """The settings that rows share, and the rows, those in floats quantized like the others.

    Args:
        rows: caches of one row, in floats or quantized. Those never written stay as they are.
        read_settings: how a row is quantized; None for one that is not, or in another way.
        quantize: makes a quantized row of one in floats.

    Raises:
        ValueError: rows of different settings, or none that is quantized.
    """
    found = [read_settings(row) for row in rows if is_quantized(row)]
    settings = found[0] if found else None
    if settings is None or any(other != settings for other in found):
        raise ValueError(f"rows of one batch must be quantized alike, not as {found}")
    return settings, [
        row if is_quantized(row) or row.keys is None else quantize(row, settings) for row in rows
    ]


def read_right_padding(cache: Any) -> Any:
    """The right padding of the prompt that is fed; None in a cache that was restored."""
    return cache.__dict__.get("_right_padding")


def add_left_padding(cache: Any, padding: Any) -> None:
    """Put padding, (R,) integers, before each row's first token."""
    cache.left_padding = cache.left_padding + padding
    cache.offset = cache.offset - padding
    refresh_padding_flag(cache)


def refresh_padding_flag(cache: Any) -> Any:
    """The cache, after a release that keeps a flag about padding has renewed it."""
    refresh = getattr(cache, "_refresh_fused_attention_eligibility", None)
    if refresh is not None:
        refresh()
    return cache


# -- trees of arrays (R, H, T, ...) ----------------------------------------------------------


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    """A tree of what ``function`` makes of the trees' arrays."""
    from mlx.utils import tree_map

    return tree_map(function, *trees)


def slice_tokens(tree: Any, end: int) -> Any:
    """The first ``end`` tokens."""
    return map_arrays(lambda part: part[:, :, :end], tree)


def copy_row(tree: Any, row: int, start: int, end: int) -> Any:
    """One row's tokens from ``start`` to ``end``, in memory of their own."""
    import mlx.core as mx

    return map_arrays(lambda part: mx.contiguous(part[row : row + 1, :, start:end]), tree)


def concatenate_rows(trees: Sequence[Any], lengths: Sequence[int]) -> Any:
    """One tree of rows that hold so many tokens, left-padded to the longest."""
    import mlx.core as mx

    longest = max(lengths)
    padded = [
        map_arrays(lambda part, left=longest - length: pad_left(part, left), tree)
        for tree, length in zip(trees, lengths, strict=True)
    ]
    return map_arrays(lambda *parts: mx.concatenate(parts), *padded)


def fill_side(cache: Any, written: Any) -> Any:
    """Keys and values of the tokens in use: of none, like those of ``written``, where empty."""
    if cache.keys is not None:
        return slice_tokens((cache.keys, cache.values), cache._idx)
    rows = cache.left_padding.shape[0]
    return map_arrays(lambda part: make_blank_rows(part, rows), (written.keys, written.values))


def roll_rows(part: Any, shifts: Any) -> Any:
    """Each row moved by its own number of tokens; what leaves at the end enters at the front.

    Args:
        part: (R, H, T, ...).
        shifts: (R,) integers.
    """
    import mlx.core as mx

    count = part.shape[TOKENS]
    places = (mx.arange(count)[None] - shifts[:, None]) % count
    places = places.reshape(-1, 1, count, *[1] * (part.ndim - TOKENS - 1))
    return mx.take_along_axis(part, places, axis=TOKENS)


def pad_left(part: Any, left: int) -> Any:
    """``left`` tokens of zeros before the others; nothing is done for none."""
    import mlx.core as mx

    pads = [(0, 0)] * part.ndim
    pads[TOKENS] = (left, 0)
    return mx.pad(part, pads) if left else part


def make_blank_rows(part: Any, rows: int) -> Any:
    """Rows of no tokens, else like those of ``part``."""
    import mlx.core as mx

    return mx.zeros((rows, part.shape[1], 0, *part.shape[TOKENS + 1 :]), part.dtype)
