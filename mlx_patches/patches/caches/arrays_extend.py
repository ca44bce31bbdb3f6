"""A prompt that comes while others are being fed kills the batch of a hybrid model.

Why
    The engine puts new prompts beside those that it is still feeding. A recurrent cache that
    was not written yet does not know how many rows it has, and ``extend`` takes the other
    side's states for all: rows are missing, or states go to the wrong ones.
How
    A merged cache remembers its number of rows. Where one side has no state yet, it gets zeros
    for its rows before the other's are added.
Upstream
    mlx-lm 0.31.3 does the same.
Retire when
    No supported release is older than mlx-lm 0.31.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Factory, Patch, Target, around

NAME = "_mlx_patches_rows"


def merged(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of these rows, that knows how many it has."""
    batch = merge(cls, caches)
    setattr(batch, NAME, len(caches))
    return batch


def filtered(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """Keep these rows alone."""
    keep(cache, batch_indices)
    setattr(cache, NAME, len(batch_indices))


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Add another batch's rows."""
    rows = rows_of(cache) + rows_of(other)
    start(cache, other)
    start(other, cache)
    extend(cache, other)
    setattr(cache, NAME, rows)


def rows_of(cache: Any) -> int:
    """How many rows a recurrent cache has."""
    known = next((state for state in cache.cache if state is not None), None)
    return int(getattr(cache, NAME, 1) if known is None else known.shape[0])


def start(cache: Any, like: Any) -> None:
    """Give a cache zeros in the slots that another's rows use and its own do not yet."""
    import mlx.core as mx

    rows = rows_of(cache)
    for slot, (mine, theirs) in enumerate(zip(cache.cache, like.cache, strict=True)):
        if mine is None and theirs is not None:
            cache[slot] = mx.zeros((rows, *theirs.shape[1:]), theirs.dtype)


_FACTORIES: dict[str, Factory] = {
    "merge": around(merged),
    "filter": around(filtered),
    "extend": around(extended),
}

PATCH = Patch(
    id="arrays-extend",
    summary="a prompt that comes while others are being fed kills the batch of a hybrid model",
    targets=tuple(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            f"ArraysCache.{name}",
            factory,
            body=(f"ArraysCache.{name}", "ArraysCache.extend"),
        )
        for name, factory in _FACTORIES.items()
    ),
    probe="mlx_patches.probes.arrays_extend:probe",
    module=__name__,
)
