"""Rope deltas that ride on a batch's first cache: a row's delta is state of its row.

They are kept in the cache's ``__dict__`` as an array (rows, 1). Every host merges, extends,
filters and extracts caches row by row, so what rides on one follows its row in any host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._patch import Target, around

NAME = "_mlx_patches_rope_deltas"
_MODULES = (("mlx-lm", "mlx_lm.models.cache"), ("mlx-vlm", "mlx_vlm.models.cache"))
_CLASSES = ("BatchKVCache", "BatchRotatingKVCache", "ArraysCache")


def deltas_of(cache: Any, rows: int | None = None) -> Any:
    """The deltas (rows, 1) that a cache carries; None where it has none.

    With a number of rows, zeros where it has none: a text has no delta.
    """
    found = cache.__dict__.get(NAME)
    if found is None and rows is not None:
        import mlx.core as mx

        return mx.zeros((rows, 1), mx.int32)
    return found


def keep(cache: Any, deltas: Any) -> None:
    """Have a cache carry these deltas."""
    cache.__dict__[NAME] = deltas


def rows_of(cache: Any) -> int:
    """How many rows a cache has."""
    if hasattr(cache, "cache"):
        state = next((state for state in cache.cache if state is not None), None)
        return 1 if state is None else int(state.shape[0])
    offset = getattr(cache, "offset", 0)
    return int(offset.size) if hasattr(offset, "size") else 1


def together(caches: Sequence[Any]) -> Any:
    """The deltas of all rows of these caches; None where none has any."""
    if all(deltas_of(cache) is None for cache in caches):
        return None
    import mlx.core as mx

    return mx.concatenate([deltas_of(cache, rows_of(cache)) for cache in caches])


def merged(merge: Callable[[Any, Any], Any], cls: Any, caches: Any) -> Any:
    """``merge`` that takes the rows' deltas along."""
    batch, deltas = merge(cls, caches), together(caches)
    if deltas is not None:
        keep(batch, deltas)
    return batch


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """``extend`` that takes the rows' deltas along."""
    deltas = together((cache, other))
    extend(cache, other)
    if deltas is not None:
        keep(cache, deltas)


def filtered(keep_rows: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """``filter`` that takes the rows' deltas along."""
    deltas = deltas_of(cache)
    keep_rows(cache, batch_indices)
    if deltas is not None:
        keep(cache, deltas[batch_indices])


def extracted(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """``extract`` that takes the row's delta along."""
    row, deltas = extract(cache, idx), deltas_of(cache)
    if deltas is not None:
        keep(row, deltas[idx : idx + 1])
    return row


_CARRYING = {
    "merge": around(merged),
    "extend": around(extended),
    "filter": around(filtered),
    "extract": around(extracted),
}

TARGETS = tuple(
    Target(distribution, module, f"{kind}.{name}", factory)
    for distribution, module in _MODULES
    for kind in _CLASSES
    for name, factory in _CARRYING.items()
)
