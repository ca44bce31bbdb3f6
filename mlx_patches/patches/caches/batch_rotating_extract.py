"""A row extracted from a rotating batch loses its window, or takes unused slots along.

Why
    Once the window wraps, every step lowers ``left_padding`` by one: it counts tokens that
    were padding and have left the window, so it goes below zero. ``extract`` slices the row
    with it, and a negative start keeps the buffer's end alone. The row's next decode dies with
    ``[full] Negative dimensions not allowed``. Before mlx-lm 0.30.4 a row without padding also
    kept the buffer's unused tail, as if it held tokens.
How
    ``extract`` gets a view of the cache in which padding is at least zero and nothing lies
    past the last token. The batch itself is not touched.
Upstream
    mlx-lm 0.31.2 clamps the padding.
Retire when
    No supported release is older than mlx-lm 0.31.2.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def extracted(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` as the solo cache it would have been."""
    return extract(settled(cache), idx)


def settled(cache: Any) -> Any:
    """A view of a rotating batch cache that holds each row's tokens and nothing else."""
    import mlx.core as mx

    view = copy.copy(cache)
    view.left_padding = mx.maximum(cache.left_padding, 0)
    if cache.keys is not None and not cache.rotated:
        view.keys = cache.keys[..., : cache._idx, :]
        view.values = cache.values[..., : cache._idx, :]
    return view


PATCH = Patch(
    id="batch-rotating-extract",
    summary="a row extracted from a batch after its window wrapped is cut short",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "BatchRotatingKVCache.extract",
            around(extracted),
        ),
    ),
    probe="mlx_patches.probes.batch_rotating_extract:probe",
    module=__name__,
)
