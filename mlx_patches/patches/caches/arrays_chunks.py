"""Recurrent layers read left padding that is longer than the first piece of a prompt.

Why
    ``make_mask`` masks left padding while the cache is empty, and never again. A prompt that is
    fed in pieces (``prefill_step_size``) beside a much longer one is still being padded in the
    second: that padding goes into its state.
How
    The cache that is asked for a mask counts the positions that it was asked for, and masks
    what is left of the padding. Each model asks one cache, once for what it feeds.
Upstream
    mlx-lm 0.30.4 counts with ``advance``.
Retire when
    No supported release is older than mlx-lm 0.30.4.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def masked(make_mask: Callable[[Any, int], Any], cache: Any, N: int) -> Any:
    """Which of the next ``N`` positions hold a token: (rows, N) of bool, None for all."""
    left = cache.left_padding
    if left is None or hasattr(cache, "advance"):  # the model counts
        return make_mask(cache, N)
    cache.left_padding = remaining(left, N)
    import mlx.core as mx

    return mx.arange(N) >= left[:, None]


def remaining(left: Any, N: int) -> Any:
    """The padding (rows,) after ``N`` more positions; None where no row has any."""
    left = left - N
    return left if max(left.tolist()) > 0 else None


PATCH = Patch(
    id="arrays-chunks",
    summary="recurrent layers read left padding that is longer than a prompt's first piece",
    targets=(Target("mlx-lm", "mlx_lm.models.cache", "ArraysCache.make_mask", around(masked)),),
    probe="mlx_patches.probes.arrays_chunks:probe",
    module=__name__,
)
