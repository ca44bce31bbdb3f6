"""The batch contract of quantized caches: what they add to the contract of ``caches``.

``affine`` and ``turbo`` repair classes that break this contract; this module has their shared code.
``R`` is the number of rows, ``H`` of key-value heads, ``D`` the width of a head, ``T`` the capacity
of the buffer in tokens.

Attributes
    ``keys``, ``values``: None in an empty cache, else a tree of arrays with rows on axis 0 and
    tokens on axis 2. Affine: packed values (R, H, T, D * bits / 32) of uint32,
    scales and biases (R, H, T, D / group_size). TurboQuant: a named tuple of norms (R, H, T) and
    indices (R, H, T, words), or a pair of these, for channels with fewer and with more bits.
    ``_idx``: an int. The buffer before ``left_padding`` is undefined.
    ``_right_padding``: (R,) integers while a right-padded prompt is fed, else None.

Methods
    ``finalize()`` leaves ``_idx`` where it is. No row joins or leaves between ``prepare`` and it.
    ``merge(rows)``, ``extract(row)``: packed values stay the same bit for bit; a float row is
    quantized like the others.
    ``filter(rows)`` drops padding that all rows share. ``trim(n)`` removes at most all tokens, and
    returns how many.
    ``nbytes`` is the memory of keys and values, with unused room (affine) or without (TurboQuant).
    All methods accept a row without tokens: it is only padding.

Only ``make_mask`` runs in a decode step, and it reads nothing from the device.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.verbs import Target, add, mx

CLASS = "BatchQuantizedKVCache"
TOKENS = 2  # the axis

# The attribute ``_right_padding`` of a cache without pending right padding.
NO_PADDING = None


def make_targets(kind: str, values: Mapping[str, Any]) -> tuple[Target, ...]:
    """Targets at attributes that a release's batch class, ``module:name``, may lack."""
    name = kind.partition(":")[2]
    return tuple(
        target
        for method, value in values.items()
        for target in add(f"{kind}.{method}", value, f"{name}.{method}", f"{name}.update_and_fetch")
    )


def prepare(
    cache: Any, *, left_padding: Any = None, lengths: Any = None, right_padding: Any = None
) -> None:
    """Announce the padding of the next prompt: each argument is (R,) integers or None.

    Raises:
        ValueError: left padding for a written cache.
    """
    if left_padding is not None:
        if cache.keys is not None:
            raise ValueError(f"left padding can only be added to an empty {type(cache).__name__}")
        add_left_padding(cache, mx.array(left_padding))
    if right_padding is not None and max(right_padding) > 0:
        cache._right_padding = mx.array(right_padding)


def finalize(cache: Any) -> None:
    """Roll each row's right padding to its front; the end of the buffer stays."""
    padding = getattr(cache, "_right_padding", NO_PADDING)
    if padding is None:
        return
    if cache.keys is not None:
        cache.keys, cache.values = map_arrays(
            lambda part: roll_rows(part, padding), (cache.keys, cache.values)
        )
    add_left_padding(cache, padding)
    cache._right_padding = None


def extract(cache: Any, idx: int, solo: Any) -> Any:
    """Copy the tokens of row ``idx`` into ``solo``, an empty solo cache, and return it."""
    start = max(0, int(cache.left_padding[idx].item()))
    if cache.keys is None or start >= cache._idx:
        return solo
    solo.keys, solo.values = copy_row((cache.keys, cache.values), idx, start, cache._idx)
    solo.offset = cache._idx - start
    return solo


def merge(make_empty: Callable[[list[int]], Any], rows: Sequence[Any]) -> Any:
    """Merge solo caches into one batch, left-padded to the longest."""
    lengths = [int(row.offset) if row.keys is not None else 0 for row in rows]
    longest = max(lengths)
    batch = make_empty([longest - length for length in lengths])
    if longest:
        written = rows[lengths.index(longest)]

        def join(*parts: Any) -> Any:
            pairs = zip(parts, lengths, strict=True)
            return mx.concatenate([pad_left(one[:, :, :n], longest - n) for one, n in pairs])

        held = [row if length else written for row, length in zip(rows, lengths, strict=True)]
        batch.keys, batch.values = map_arrays(join, *((row.keys, row.values) for row in held))
        batch.offset = mx.array(lengths)
        batch._idx = longest
    return refresh_padding_flag(batch)


def extend(original: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Run the release's ``extend`` on two written caches without unused room."""
    if cache.keys is None and other.keys is None:
        return original(cache, other)
    written = cache if cache.keys is not None else other
    own, others = fill_side(cache, written), fill_side(other, written)
    other = copy.copy(other)
    cache.keys, cache.values = own
    other.keys, other.values = others
    return original(cache, other)


def size(cache: Any) -> int:
    return int(cache._idx)


def nbytes(cache: Any) -> int:
    """The memory of keys and values in bytes, with the unused room."""
    from mlx.utils import tree_flatten

    if cache.keys is None:
        return 0
    return sum(part.nbytes for _, part in tree_flatten((cache.keys, cache.values)))


def quantize_alike(
    rows: Sequence[Any], quantize: Callable[[Any, dict[str, Any]], Any]
) -> tuple[dict[str, Any], list[Any]]:
    """The settings that quantized rows share, and all written rows quantized with them."""
    found = [read_settings(row) for row in rows if holds_quantized(row)]
    if not found or any(other != found[0] for other in found):
        raise ValueError(f"rows of one batch must be quantized alike, not as {found}")
    settings = found[0]
    return settings, [
        row if holds_quantized(row) or row.keys is None else quantize(row, settings) for row in rows
    ]


def add_left_padding(cache: Any, padding: Any) -> None:
    """Count ``padding``, (R,) integers, as further left padding of each row."""
    cache.left_padding = cache.left_padding + padding
    cache.offset = cache.offset - padding
    refresh_padding_flag(cache)


def refresh_padding_flag(cache: Any) -> Any:
    """Update the flag that later releases derive from the padding, and return the cache."""
    refresh = getattr(cache, "_refresh_fused_attention_eligibility", None)
    if refresh is not None:
        refresh()
    return cache


def map_arrays(function: Callable[..., Any], *trees: Any) -> Any:
    from mlx.utils import tree_map

    return tree_map(function, *trees)


def slice_tokens(tree: Any, end: int) -> Any:
    return map_arrays(lambda part: part[:, :, :end], tree)


def copy_row(tree: Any, row: int, start: int, end: int) -> Any:
    """One row's tokens from ``start`` to ``end``, copied to new memory."""
    return map_arrays(lambda part: mx.contiguous(part[row : row + 1, :, start:end]), tree)


def fill_side(cache: Any, written: Any) -> Any:
    """Keys and values of the tokens in use; zero tokens, shaped like ``written``'s, if empty."""
    if cache.keys is not None:
        return slice_tokens((cache.keys, cache.values), cache._idx)
    rows = cache.left_padding.shape[0]
    return map_arrays(lambda part: make_blank_rows(part, rows), (written.keys, written.values))


def roll_rows(part: Any, shifts: Any) -> Any:
    """Move each row right by its own number of tokens; tokens past the end enter at the front."""
    count = part.shape[TOKENS]
    places = (mx.arange(count)[None] - shifts[:, None]) % count
    places = places.reshape(-1, 1, count, *[1] * (part.ndim - TOKENS - 1))
    return mx.take_along_axis(part, places, axis=TOKENS)


def pad_left(part: Any, left: int) -> Any:
    pads = [(0, 0)] * part.ndim
    pads[TOKENS] = (left, 0)
    return mx.pad(part, pads) if left else part


def make_blank_rows(part: Any, rows: int) -> Any:
    """Rows of zero tokens, with the other axes and the dtype of ``part``."""
    return mx.zeros((rows, part.shape[1], 0, *part.shape[TOKENS + 1 :]), part.dtype)


def merge_quantized(cls: Any, caches: Sequence[Any]) -> Any:
    """Merge solo caches into a quantized batch of class ``cls``; float rows are quantized."""
    settings, rows = quantize_alike(caches, lambda row, settings: row.to_quantized(**settings))
    return merge(lambda padding: cls(padding, **settings), rows)


def read_settings(cache: Any) -> dict[str, Any]:
    """The constructor arguments of a quantized cache, except a batch's left padding."""
    turbo = ("bits", "seed", "key_bits", "value_bits")  # no last two up to mlx-vlm 0.6
    names = turbo if hasattr(cache, "seed") else ("group_size", "bits")
    return {name: getattr(cache, name) for name in names if hasattr(cache, name)}


def holds_quantized(cache: Any) -> bool:
    return hasattr(cache, "bits")
