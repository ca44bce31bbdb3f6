"""``make_mask`` of recurrent caches: which of the next positions are padding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import CACHES, LM_CACHES, at
from .contract import PADDING, read_padding

# -- make_mask: arrays-mask ----------------------------------------------------------------------


def mask_both_sides(make_mask: Callable[[Any, int], Any], cache: Any, N: int) -> Any:
    """Which of the next ``N`` positions hold a token: (rows, N) of bool, None for all."""
    mask = make_mask(cache, N)
    if mask is None or len(padding := read_padding(cache)) < len(PADDING):
        return mask
    return mask & mask_right(padding["lengths"], N)


def has_both(cache: Any, N: int) -> bool:
    """Whether a cache has both left padding and lengths."""
    # Not in ``__dict__``: mlx-vlm 0.6.16 computes them from a number.
    return all(getattr(cache, name, None) is not None for name in PADDING)


def mask_right(lengths: Any, N: int) -> Any:
    """Which of the next ``N`` positions are before the end of their row: (rows, N) of bool."""
    import mlx.core as mx

    return mx.arange(N) < lengths[:, None]


ARRAYS_MASK = Patch(
    id="arrays-mask",
    summary="mlx-lm and mlx-vlm, recurrent models: wrong output for the shorter prompts of a batch",
    targets=at(
        CACHES,
        {"ArraysCache.make_mask": around(mask_both_sides)},
        fingerprint_of=("ArraysCache.make_mask", "ArraysCache.merge"),
        when=has_both,
    ),
    probe=".probe_mask:probe",
    doc="""Recurrent layers read the right padding of a batch's shorter prompts.

    Why
        Merging empty recurrent caches gives them a left padding of zeros. ``make_mask`` then
        masks by left padding and ignores ``lengths``, so a shorter prompt's padding goes into
        its state. Every hybrid model is wrong in a batch of mixed lengths.
    How
        If a cache has both, the mask combines both. A cache with one of them keeps the release's
        mask, and so does a decode step, which has neither.
    Upstream
        mlx-lm 0.32.0 does the same; 0.31.2 does not merge to zeros.
    Retire when
        mlx-lm 0.31.3 is no longer supported.
    """,
)


# -- make_mask where the release has no advance: arrays-chunks -----------------------------------


def mask_each_piece(make_mask: Callable[[Any, int], Any], cache: Any, N: int) -> Any:
    """Which of the next ``N`` positions hold a token: (rows, N) of bool, None for all.

    The call also counts these positions as fed: a model makes one mask, of one cache, for each
    piece that it feeds.
    """
    left = cache.left_padding
    if left is None or hasattr(cache, "advance"):  # ``advance`` counts
        return make_mask(cache, N)
    # Reading it does not wait for the device: the engine and this patch make the array from a
    # list. It is None before the first decode step, which comes after the longest prompt.
    numbers = left.tolist()
    cache.left_padding = subtract_fed(numbers, N)
    if max(numbers) <= 0:
        return make_mask(cache, N)
    import mlx.core as mx

    return mx.arange(N) >= left[:, None]


def subtract_fed(left: list[int], N: int) -> Any:
    """The left padding (rows,) after ``N`` more positions; None where no row has any."""
    import mlx.core as mx

    return mx.array([number - N for number in left]) if max(left) > N else None


ARRAYS_CHUNKS = Patch(
    id="arrays-chunks",
    summary="mlx-lm, recurrent models: wrong output if left padding is longer than the first chunk",
    targets=(Target(*LM_CACHES, "ArraysCache.make_mask", around(mask_each_piece)),),
    probe=".probe_chunks:probe",
    doc="""Recurrent layers read left padding that is longer than the first piece of a prompt.

    Why
        ``make_mask`` masks left padding only while the cache is empty. If prompts are fed in
        pieces (``prefill_step_size``), the left padding of a much shorter prompt reaches into
        the second piece: that padding goes into its state.
    How
        ``make_mask`` counts the positions that it was called for, and masks the padding that is
        left. A model calls it for one cache, once for each piece.
    Upstream
        mlx-lm 0.30.4 counts with ``advance``.
    Retire when
        No supported release is older than mlx-lm 0.30.4.
    """,
)
