"""A batch of a recurrent or hybrid model dies as soon as its first row ends.

Why
    When a row ends, ``BatchGenerator`` takes its cache out of the batch. Recurrent caches and
    lists of caches can be batched, but have no ``extract``: AttributeError, in every batch.
How
    They get one: row ``idx`` of each state, or of each cache of a list.
Upstream
    mlx-lm 0.30.4 adds both.
Retire when
    No supported release is older than mlx-lm 0.30.4.
"""

from __future__ import annotations

import copy
from typing import Any

from ..._patch import Patch, Target

MODULE = "mlx_lm.models.cache"


def row_of_states(cache: Any, idx: int) -> Any:
    """Row ``idx`` of a recurrent cache; an unused slot stays unused."""
    row = copy.copy(cache)
    row.cache = [state if state is None else state[idx : idx + 1] for state in cache.cache]
    row.left_padding = row.lengths = None
    return row


def row_of_list(cache: Any, idx: int) -> Any:
    """Row ``idx`` of each cache of a list."""
    row = copy.copy(cache)
    row.caches = tuple(inner.extract(idx) for inner in cache.caches)
    return row


PATCH = Patch(
    id="recurrent-extract",
    summary="a batch of a recurrent or hybrid model dies as soon as its first row ends",
    targets=(
        Target(
            "mlx-lm",
            MODULE,
            "ArraysCache.extract",
            lambda original: row_of_states,
            body=("ArraysCache.filter", "ArraysCache.extract"),
            adds=True,
        ),
        Target(
            "mlx-lm",
            MODULE,
            "CacheList.extract",
            lambda original: row_of_list,
            body=("CacheList.filter", "CacheList.extract"),
            adds=True,
        ),
    ),
    probe="mlx_patches.probes.recurrent_extract:probe",
    module=__name__,
)
