"""What rides on a batch's cache, a number a row: rope deltas, and the lengths of prompts.

They are kept in the cache's ``__dict__`` as an array (rows, 1). Every host merges, extends,
filters and extracts caches row by row, so what rides on one follows its row in any host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Target, around

DELTAS = "_mlx_patches_rope_deltas"
LENGTHS = "_mlx_patches_prompt_lengths"
_NAMES = (DELTAS, LENGTHS)
_MODULES = (("mlx-lm", "mlx_lm.models.cache"), ("mlx-vlm", "mlx_vlm.models.cache"))
_CLASSES = ("BatchKVCache", "BatchRotatingKVCache", "ArraysCache")


def deltas_of(cache: Any, rows: int | None = None, name: str = DELTAS) -> Any:
    """The deltas (rows, 1) that a cache carries, or the lengths; None where it has none.

    With a number of rows, zeros where it has none: a text has no delta.
    """
    found = cache.__dict__.get(name)
    if found is None and rows is not None:
        import mlx.core as mx

        return mx.zeros((rows, 1), mx.int32)
    return found


def keep(cache: Any, deltas: Any, name: str = DELTAS) -> None:
    """Have a cache carry these deltas, or lengths."""
    cache.__dict__[name] = deltas


def rows_of(cache: Any) -> int:
    """How many rows a cache has."""
    if hasattr(cache, "cache"):
        state = next((state for state in cache.cache if state is not None), None)
        return 1 if state is None else int(state.shape[0])
    offset = getattr(cache, "offset", 0)
    return int(offset.size) if hasattr(offset, "size") else 1


def carried(cache: Any) -> dict[str, Any]:
    """What a cache carries, by name."""
    found = {name: deltas_of(cache, name=name) for name in _NAMES}
    return {name: held for name, held in found.items() if held is not None}


def together(caches: Sequence[Any]) -> dict[str, Any]:
    """What these caches carry, for all their rows."""
    names = [name for name in _NAMES if any(name in carried(cache) for cache in caches)]
    if not names:
        return {}
    import mlx.core as mx

    return {
        name: mx.concatenate([deltas_of(cache, rows_of(cache), name) for cache in caches])
        for name in names
    }


def merged(merge: Callable[[Any, Any], Any], cls: Any, caches: Any) -> Any:
    """``merge`` that takes along what the rows carry."""
    batch = merge(cls, caches)
    for name, held in together(caches).items():
        keep(batch, held, name)
    return batch


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """``extend`` that takes along what the rows carry."""
    both = together((cache, other))
    extend(cache, other)
    for name, held in both.items():
        keep(cache, held, name)


def filtered(keep_rows: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """``filter`` that takes along what the rows carry."""
    before = carried(cache)
    keep_rows(cache, batch_indices)
    for name, held in before.items():
        keep(cache, held[batch_indices], name)


def extracted(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """``extract`` that takes along what the row carries."""
    row = extract(cache, idx)
    for name, held in carried(cache).items():
        keep(row, held[idx : idx + 1], name)
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
