"""Takes the rows of a batch's caches apart, and puts them together again in place."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .quantized import affine as batch_quantized


def row_of(layer: Any, row: int, fresh: Any) -> Any:
    """One row of a layer's batch cache, as the cache that it would have alone.

    Args:
        layer: the batch's; it is not touched.
        row: which.
        fresh: an empty cache of the layer for one row; returned where the batch's is empty.
    """
    if hasattr(layer, "caches"):
        alone = copy.copy(fresh)
        parts = zip(layer.caches, fresh.caches, strict=True)
        alone.caches = tuple(row_of(part, row, new) for part, new in parts)
        return alone
    if is_recurrent(layer):
        for index, state in enumerate(layer.cache):
            fresh.cache[index] = None if state is None else state[row : row + 1]
        return fresh
    return as_empty(layer, fresh) if is_empty(layer) else layer.extract(row)


def as_empty(layer: Any, fresh: Any) -> Any:
    """An empty cache for one row of a batch's layer: ``fresh``, quantized where that is."""
    if hasattr(layer, "caches"):
        alone = copy.copy(fresh)
        parts = zip(layer.caches, fresh.caches, strict=True)
        alone.caches = tuple(as_empty(part, new) for part, new in parts)
        return alone
    if not hasattr(layer, "bits") or hasattr(fresh, "bits"):
        return fresh
    caches = sys.modules[type(layer).__module__]
    if hasattr(layer, "group_size"):
        return caches.QuantizedKVCache(group_size=layer.group_size, bits=layer.bits)
    return caches.TurboQuantKVCache(layer.bits, layer.seed, layer.key_bits, layer.value_bits)


def put_together(layer: Any, rows: Sequence[Any], waiting: Sequence[int]) -> None:
    """Make a layer's batch cache hold these rows, padded on the left.

    ``waiting`` is how many more positions of padding come before a row's first token.
    """
    if hasattr(layer, "caches"):
        for index, part in enumerate(layer.caches):
            put_together(part, [row.caches[index] for row in rows], waiting)
    elif is_recurrent(layer):
        for index, states in enumerate(zip(*(row.cache for row in rows), strict=True)):
            layer.cache[index] = stacked(states)
    elif not all(is_empty(row) for row in rows):
        vars(layer).update(vars(merged(layer, list(rows))))
        if any(waiting):
            import mlx.core as mx

            layer.left_padding = layer.left_padding + mx.array(waiting)
            layer.offset = layer.offset - mx.array(waiting)


def merged(layer: Any, rows: list[Any]) -> Any:
    """A batch cache of the layer's kind that holds these rows."""
    if is_quantized(layer):
        return batch_quantized.merge(type(layer), rows)
    kind = type(layer) if hasattr(type(layer), "merge") else type(rows[0])
    return kind.merge(rows)


def stacked(states: Sequence[Any]) -> Any:
    """The rows' states as one array, zeros for a row that has none; None where none has.

    A window of the last tokens may still be growing: it gets its zeros in front.
    """
    import mlx.core as mx

    known = max((s for s in states if s is not None), key=lambda s: s.size, default=None)
    if known is None:
        return None
    return mx.concatenate([mx.zeros_like(known) if s is None else like(s, known) for s in states])


def like(state: Any, longest: Any) -> Any:
    """A state with as many entries on its second axis as the longest."""
    import mlx.core as mx

    missing = longest.shape[1] - state.shape[1] if state.ndim > 1 else 0
    return mx.pad(state, [(0, 0), (missing, 0), *[(0, 0)] * (state.ndim - 2)]) if missing else state


def is_empty(layer: Any) -> bool:
    """Whether an attention cache was never written."""
    return bool(layer.keys is None if hasattr(layer, "keys") else layer.empty())


def is_quantized(layer: Any) -> bool:
    """Whether a batch cache holds keys and values in few bits, with scales and biases."""
    return type(layer).__name__ == batch_quantized.CLASS


def is_recurrent(layer: Any) -> bool:
    """Whether a cache holds states that no token can be taken out of again."""
    return hasattr(layer, "cache") and not hasattr(layer, "update_and_fetch")


def recurrent(cache: Iterable[Any]) -> Iterator[Any]:
    """The recurrent caches among a model's, those inside of others too."""
    for layer in cache:
        if hasattr(layer, "caches"):
            yield from recurrent(layer.caches)
        elif is_recurrent(layer):
            yield layer
