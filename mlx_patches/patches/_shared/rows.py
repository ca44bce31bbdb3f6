"""Extract a batch's rows as solo caches, and write them back in place."""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ...core.arrays import mx
from . import quantized

# The attributes of a batch's attention cache that are arrays (rows,) of counts.
COUNTS = ("left_padding", "offset")
# The attributes that announce right padding until ``finalize``: its amount, or the offset at which
# each row's tokens end.
RIGHT = ("_right_padding", "_lengths")
# The attribute of a sparse layer's batch cache (MiniMax M3, Qwen4 Exp) for the cache of its keys.
INNER = "kv_cache"


def read_counts(arrays: Sequence[Any]) -> list[list[int] | None]:
    """Arrays (rows,) as lists of numbers, None for anything else. One device read for all."""
    known = [array for array in arrays if is_counts(array)]
    if not known:
        return [None] * len(arrays)
    numbers = iter(mx.concatenate(known).tolist())
    return [
        [next(numbers) for _ in range(array.size)] if is_counts(array) else None for array in arrays
    ]


def is_counts(value: Any) -> bool:
    """Whether a value is an array (rows,)."""
    return getattr(value, "ndim", 0) == 1


def hold_counts(cache: Sequence[Any]) -> list[Any]:
    """Shallow copies of a batch's caches, with the counts of attention caches in host memory.

    ``extract`` reads a layer's counts for every row. In the copies they are numpy arrays, so all
    layers and rows cost one device read in total. The batch's caches do not change. A cache
    without counts is not copied.
    """
    import numpy as np

    layers = flatten_caches(cache)
    # In the order of ``flatten_caches``.
    numbers = iter(read_counts([getattr(one, name, None) for one in layers for name in COUNTS]))

    def hold(layer: Any) -> Any:
        held = copy.copy(layer)
        if hasattr(layer, "caches"):
            held.caches = tuple(map(hold, layer.caches))
            return held
        found = {name: next(numbers) for name in COUNTS}
        known = {name: np.array(counts) for name, counts in found.items() if counts is not None}
        if not known:
            return layer
        vars(held).update(known)  # not with setattr: a property of the class may convert the value
        return held

    return [hold(layer) for layer in cache]


def flatten_caches(cache: Iterable[Any]) -> Iterator[Any]:
    """The caches of all layers, with those inside lists of caches."""
    for layer in cache:
        if hasattr(layer, "caches"):
            yield from flatten_caches(layer.caches)
        else:
            yield layer


def slice_row(layer: Any, row: int, empty: Any) -> Any:
    """One row of a layer's batch cache as a solo cache: a changed copy of ``empty``."""
    if layer is None:
        return None
    if hasattr(layer, "caches"):
        return _pair_caches(lambda part, new: slice_row(part, row, new), layer, empty)
    if is_recurrent(layer):
        solo = copy.copy(empty)
        solo.cache = [None if state is None else state[row : row + 1] for state in layer.cache]
        return solo
    return copy_empty(layer, empty) if is_empty(layer) else layer.extract(row)


def copy_empty(layer: Any, empty: Any) -> Any:
    """An empty solo cache for a layer: a copy of ``empty``, quantized like ``layer``."""
    if hasattr(layer, "caches"):
        return _pair_caches(copy_empty, layer, empty)
    if hasattr(layer, "bits") and not hasattr(empty, "bits"):
        return make_solo(layer)
    solo = copy.copy(empty)
    if is_recurrent(solo):
        solo.cache = list(solo.cache)
    return solo


def _pair_caches(make: Callable[[Any, Any], Any], layer: Any, empty: Any) -> Any:
    solo = copy.copy(empty)
    pairs = zip(layer.caches, empty.caches, strict=True)
    solo.caches = tuple(make(part, new) for part, new in pairs)
    return solo


def make_solo(layer: Any) -> Any:
    """An empty solo cache, quantized like this batch cache."""
    name = "TurboQuantKVCache" if hasattr(layer, "seed") else "QuantizedKVCache"
    return find_class(layer, name)(**quantized.read_settings(layer))


def make_empty_row(layer: Any) -> Any:
    if hasattr(layer, "max_size"):
        return find_class(layer, "RotatingKVCache")(layer.max_size)
    return copy_empty(layer, find_class(layer, "KVCache")())


def start_batch(batch: Any, like: Any) -> None:
    """Give an empty batch cache zero columns, with the heads, width and dtype of ``like``'s."""
    rows = batch.offset.size
    batch.keys, batch.values = (
        quantized.make_blank_rows(side, rows) for side in (like.keys, like.values)
    )


def as_plain(layer: Any) -> Any:
    """A ``ChunkedKVCache`` as a ``KVCache`` of all tokens; other caches are returned unchanged.

    Zeros stand for the dropped tokens, which no later token attends to.
    """
    if not hasattr(layer, "chunk_size"):
        return layer
    row = find_class(layer, "KVCache")()
    if layer.keys is not None:
        dropped = layer.start_position
        held = quantized.slice_tokens((layer.keys, layer.values), layer.offset - dropped)
        row.keys, row.values = (quantized.pad_left(side, dropped) for side in held)
        row.offset = layer.offset
    return row


def find_class(layer: Any, name: str) -> Any:
    """The cache class of this name in the module of the layer's class or of one of its bases.

    Raises:
        LookupError: none of these modules has it.
    """
    for kind in type(layer).__mro__:
        found = getattr(sys.modules.get(kind.__module__), name, None)
        if found is not None:
            return found
    raise LookupError(f"no class {name} in the modules of {type(layer).__qualname__} and its bases")


def join_rows(layer: Any, rows: Sequence[Any], waiting: Sequence[int]) -> Any:
    """A layer's batch cache of these solo caches, left-padded, with ``waiting`` more pads each."""
    if hasattr(layer, "caches"):
        return [
            join_rows(part, [row.caches[index] for row in rows], waiting)
            for index, part in enumerate(layer.caches)
        ]
    if is_recurrent(layer):
        return [join_states(states) for states in zip(*(row.cache for row in rows), strict=True)]
    if layer is None or all(is_empty(row) for row in rows):
        return None
    batch = merge_rows(layer, list(rows))
    if any(waiting):
        batch.left_padding = batch.left_padding + mx.array(waiting)
        batch.offset = batch.offset - mx.array(waiting)
    return batch


def write_rows(layer: Any, joined: Any, dropped: Sequence[int] = ()) -> None:
    """Write the contents that ``join_rows`` returned into a layer's batch cache.

    Right padding that the batch announced stays announced; joined rows have none. Each row skipped
    ``dropped`` positions of it.
    """
    if hasattr(layer, "caches"):
        for part, inner in zip(layer.caches, joined, strict=True):
            write_rows(part, inner, dropped)
    elif is_recurrent(layer):
        for index, state in enumerate(joined):
            layer.cache[index] = state
    elif joined is not None:
        contents = dict(vars(joined))
        if INNER in contents:
            write_rows(vars(layer)[INNER], contents.pop(INNER), dropped)
        announced = {name: vars(layer).get(name) for name in RIGHT}
        vars(layer).update(contents)
        vars(layer).update({name: one for name, one in announced.items() if is_counts(one)})
        if any(dropped) and is_counts(padding := announced.get("_right_padding")):
            layer._right_padding = padding - mx.array(dropped)


def merge_rows(layer: Any, rows: list[Any]) -> Any:
    if is_quantized(layer):
        return quantized.merge_quantized(type(layer), rows)
    kind = type(layer) if hasattr(type(layer), "merge") else type(rows[0])
    return kind.merge(rows)


def join_states(states: Sequence[Any]) -> Any:
    """The rows' states as one array, zeros for a row without a state; None if no row has one.

    A state that is a window of the last tokens may be shorter in some rows: they get zeros in
    front.
    """
    known = max((s for s in states if s is not None), key=lambda s: s.size, default=None)
    if known is None:
        return None
    return mx.concatenate(
        [mx.zeros_like(known) if s is None else pad_state(s, known) for s in states]
    )


def pad_state(state: Any, longest: Any) -> Any:
    """Left-pad a state's second axis with zeros to the length of the longest."""
    missing = longest.shape[1] - state.shape[1] if state.ndim > 1 else 0
    return mx.pad(state, [(0, 0), (missing, 0), *[(0, 0)] * (state.ndim - 2)]) if missing else state


def is_empty(layer: Any) -> bool:
    """Whether an attention cache was never written."""
    return bool(layer.keys is None if hasattr(layer, "keys") else layer.empty())


def is_quantized(layer: Any) -> bool:
    """Whether a batch cache is a ``BatchQuantizedKVCache`` or a subclass of it."""
    return any(kind.__name__ == quantized.CLASS for kind in type(layer).__mro__)


def is_recurrent(layer: Any) -> bool:
    """Whether a cache holds recurrent states instead of keys and values."""
    return hasattr(layer, "cache") and not hasattr(layer, "update_and_fetch")


def recurrent(cache: Iterable[Any]) -> Iterator[Any]:
    return (layer for layer in flatten_caches(cache) if is_recurrent(layer))


def cut_to_window(row: Any, keep: int = 0) -> Any:
    """A solo cache with only the row's first ``keep`` tokens and its newest, one window in all.

    They are in order of age. Returns the row itself if it already is so, or is empty. The row
    does not change.
    """
    size = min(row.offset, row.max_size)
    wider = keep and row.keys is not None and row.keys.shape[2] > row.max_size
    if row.keys is None or (row._idx == size and not wider):
        return row
    cut = copy.copy(row)
    cut.keys, cut.values = (
        take_last(row._temporal_order(side), size, keep) for side in (row.keys, row.values)
    )
    cut._idx = size
    return cut


def take_last(side: Any, size: int, keep: int = 0) -> Any:
    """The first ``keep`` and the last columns of keys or values, ``size`` in all."""
    if not keep or side.shape[2] <= size:
        return side[:, :, -size:]
    return mx.concatenate([side[..., :keep, :], side[..., keep - size :, :]], axis=2)
