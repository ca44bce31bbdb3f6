"""``make_mask`` of recurrent caches: which positions of the next chunk are padding."""

from typing import Any

from ....core.verbs import Function, Patch, in_caches, mx, result, wrap
from .contract import PADDING, read_padding


def hide_right_padding(mask: Any, cache: Any, N: int, /) -> Any:
    """The mask (rows, N) of bool, also False at right padding."""
    if mask is None or len(padding := read_padding(cache)) < len(PADDING):
        return mask
    return mask & mask_right(padding["lengths"], N)


def has_both(cache: Any, /) -> bool:
    # Not read from ``__dict__``: mlx-vlm 0.6.16 computes them from a number.
    return all(getattr(cache, name, None) is not None for name in PADDING)


def mask_right(lengths: Any, N: int) -> Any:
    """A mask (rows, N) of bool, True up to the end of each row's tokens."""
    return mx.arange(N) < lengths[:, None]


ARRAYS_MASK = Patch(
    id="arrays-mask",
    targets=result(
        in_caches("ArraysCache.make_mask"),
        hide_right_padding,
        fingerprint_of=("ArraysCache.make_mask", "ArraysCache.merge"),
        when=has_both,
    ),
    probe=".probe_mask:probe",
    doc="""mlx-lm and mlx-vlm, recurrent models: wrong output for the shorter prompts of a
    batch.

    Why: Merged empty recurrent caches have a left padding of zeros. ``make_mask`` then masks by
        left padding and ignores ``lengths``, so a shorter prompt's padding enters its state. Every
        hybrid model is wrong in a batch of mixed lengths.
    How: If a cache has both, the mask combines both. With one of them the release's mask stays; a
        decode step has neither.
    Upstream: mlx-lm 0.32.0 does the same; 0.31.2 does not merge to zeros.
    Retire when: mlx-lm 0.31.3 is no longer supported.
    """,
)


def mask_each_chunk(make_mask: Function, cache: Any, N: int) -> Any:
    """Which of the next ``N`` positions hold a token: (rows, N) of bool, None for all.

    The call also counts these positions as fed: a model makes one mask per chunk, from one cache.
    """
    left = cache.left_padding
    if left is None or hasattr(cache, "advance"):  # ``advance`` counts
        return make_mask(cache, N)
    # Reading it does not wait for the device: the engine and this patch make the array from a
    # list. At the first decode step, after the longest prompt, it is None.
    numbers = left.tolist()
    cache.left_padding = subtract_fed(numbers, N)
    if max(numbers) <= 0:
        return make_mask(cache, N)
    return mx.arange(N) >= left[:, None]


def subtract_fed(left: list[int], N: int) -> Any:
    """The left padding (rows,) after ``N`` more positions; None if no row has any."""
    return mx.array([number - N for number in left]) if max(left) > N else None


ARRAYS_CHUNKS = Patch(
    id="arrays-chunks",
    targets=wrap("mlx_lm.models.cache:ArraysCache.make_mask", mask_each_chunk),
    probe=".probe_chunks:probe",
    doc="""mlx-lm, recurrent models: wrong output if left padding is longer than the first
    chunk.

    Why: ``make_mask`` masks left padding only while the cache is empty. In chunked prefill
        (``prefill_step_size``) the left padding of a much shorter prompt reaches into the second
        chunk, and enters its state.
    How: ``make_mask`` counts the positions that it was called for, and masks the remaining padding.
        A model calls it once per chunk, on one cache.
    Upstream: mlx-lm 0.30.4 counts with ``advance``.
    Retire when: No supported release is older than mlx-lm 0.30.4.
    """,
)
