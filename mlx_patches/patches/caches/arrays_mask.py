"""Recurrent layers read the right padding of a batch's shorter prompts.

Why
    Merging empty recurrent caches gives them a left padding of zeros. ``make_mask`` then masks
    by left padding and forgets ``lengths``, so a shorter prompt's padding goes into its state.
    Every hybrid model is wrong in a batch of mixed lengths.
How
    Where a cache has both, the mask has both. With one of them nothing changes, nor does a
    decode step, where neither is left.
Upstream
    mlx-lm 0.32.0 does the same; 0.31.2 does not merge to zeros.
Retire when
    mlx-lm 0.31.3 is no longer supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def masked(make_mask: Callable[[Any, int], Any], cache: Any, N: int) -> Any:
    """Which of the next ``N`` positions hold a token: (rows, N) of bool, None for all."""
    mask = make_mask(cache, N)
    if cache.left_padding is None or cache.lengths is None:
        return mask
    return mask & within(cache.lengths, N)


def within(lengths: Any, N: int) -> Any:
    """Which of the next ``N`` positions are before the end of their row, (rows, N) of bool."""
    import mlx.core as mx

    return mx.arange(N) < lengths[:, None]


PATCH = Patch(
    id="arrays-mask",
    summary="recurrent layers read the right padding of a batch's shorter prompts",
    targets=tuple(
        Target(
            distribution,
            module,
            "ArraysCache.make_mask",
            around(masked),
            body=("ArraysCache.make_mask", "ArraysCache.merge"),
        )
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
    ),
    probe="mlx_patches.probes.arrays_mask:probe",
    module=__name__,
)
