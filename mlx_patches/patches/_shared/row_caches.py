"""Solo caches of a batch's rows, and the keys and values that a call adds to them."""

import weakref
from collections.abc import Sequence
from typing import Any

from ...core.arrays import mx
from . import rows as cache_rows
from .quantized import pad_left

Update = tuple[Any, Any]


def counts_rows(layer: Any) -> bool:
    """Whether a cache has one offset per row."""
    return bool(getattr(getattr(layer, "offset", 0), "ndim", 0))


def take_row(layer: Any, row: int) -> Any:
    """One row's cache, extracted from a layer's; empty if the row was fed only padding."""
    if hasattr(layer, "caches"):
        return type(layer)(*(take_row(inner, row) for inner in layer.caches))
    if counts_rows(layer) and (cache_rows.is_empty(layer) or layer.offset[row] <= 0):
        return cache_rows.make_empty_row(layer)
    return layer.extract(row) if hasattr(layer, "extract") else cut_row(layer, row)


def cut_row(layer: Any, row: int) -> Any:
    """The cache that ``BatchKVCache.extract`` returns from mlx-lm 0.28.4 on."""
    own = cache_rows.make_empty_row(layer)
    tokens = slice(int(layer.left_padding[row]), layer._idx)
    own.keys, own.values = (side[row : row + 1, :, tokens] for side in (layer.keys, layer.values))
    own.offset = own.keys.shape[2]
    return own


def record_updates(layer: Any) -> list[Update]:
    """Return a list that collects the keys and values of a row's cache from now on.

    The recorder holds the cache by a weak reference. A strong one would be a cycle, and keep the
    row's copy of the keys and values alive until the cyclic collector runs.
    """
    updates: list[Update] = []
    reference = weakref.ref(layer)

    def update_and_fetch(keys: Any, values: Any) -> Any:
        updates.append((keys, values))
        own: Any = reference()
        return type(own).update_and_fetch(own, keys, values)

    layer.update_and_fetch = update_and_fetch
    return updates


def enter_updates(layer: Any, rows: Sequence[list[Update]]) -> None:
    """Add the rows' new keys and values to the batch's cache, left-padded to the longest."""
    if not any(rows):
        return
    sides = [
        [mx.concatenate([pair[side] for pair in row], axis=2) if row else None for row in rows]
        for side in (0, 1)
    ]
    layer.update_and_fetch(*(mx.concatenate(pad_front(side)) for side in sides))


def pad_front(rows: Sequence[Any]) -> list[Any]:
    """Left-pad the rows' new keys or values with zeros to the length of the longest."""
    like = max((row for row in rows if row is not None), key=lambda row: row.shape[2])
    held = (like[:, :, :0] if row is None else row for row in rows)
    return [pad_left(row, like.shape[2] - row.shape[2]) for row in held]
