"""A batch of a recurrent or hybrid model dies as soon as its first row ends.

Why
    When a row ends, ``BatchGenerator`` takes its cache out of the batch. Recurrent caches and
    lists of caches can be batched, but have no ``extract``: AttributeError, in every batch.
How
    ``Batch.extract_cache`` takes the row out of each cache that cannot do it: row ``idx`` of
    every state, or of every cache in a list.
Upstream
    mlx-lm 0.30.4 gives both caches an ``extract``.
Retire when
    No supported release is older than mlx-lm 0.30.4.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def extracted(extract_cache: Callable[[Any, int], Any], batch: Any, idx: int) -> Any:
    """The caches of row ``idx``, one a layer."""
    if all(hasattr(cache, "extract") for cache in batch.cache):
        return extract_cache(batch, idx)
    return [row_of(cache, idx) for cache in batch.cache]


def row_of(cache: Any, idx: int) -> Any:
    """Row ``idx`` of a layer's cache; an unused slot stays unused."""
    if hasattr(cache, "extract"):
        return cache.extract(idx)
    row = copy.copy(cache)
    if hasattr(cache, "caches"):
        row.caches = tuple(row_of(inner, idx) for inner in cache.caches)
        return row
    row.cache = [state if state is None else state[idx : idx + 1] for state in cache.cache]
    row.left_padding = None
    return row


PATCH = Patch(
    id="recurrent-extract",
    summary="a batch of a recurrent or hybrid model dies as soon as its first row ends",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.generate",
            "Batch.extract_cache",
            around(extracted),
            # The first is the same where the caches have an ``extract``.
            body=("Batch.extract_cache", "_merge_caches"),
        ),
    ),
    probe="mlx_patches.probes.recurrent_extract:probe",
    module=__name__,
)
