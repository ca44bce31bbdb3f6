"""The last windows of tokens that each row of a pooling cache has pooled.

Both cache classes of mlx-vlm pool a window once it is full, and then forget its tokens. A record
of the last few is an entry of the cache's ``__dict__``. A row's number of pooled windows shows
which of them is its last, so a rewound cache needs no special handling.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ....core.arrays import mx
from ..._shared.row_entries import RowEntry

WINDOWS = "_mlx_patches_windows"
# The number of kept windows. A rejected draft may take back all of them but one.
KEPT = 5


# Not compared by value: that would read its arrays from the device.
@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The last ``KEPT`` windows of each row, the oldest first. Immutable: copies share it.

    A missing window is zeros with gates of minus infinity, which have no weight.

    Args:
        kv: the values to pool, (rows, KEPT, ratio, width).
        gate: their gates, (rows, KEPT, ratio, width).
        ends: each row's number of pooled windows, including the last of these.
    """

    kv: Any
    gate: Any
    ends: tuple[int, ...]

    def rewind(self, ends: Sequence[int]) -> "Windows":
        """The record at the time when the rows had pooled these numbers of windows."""
        behind = [now - then for now, then in zip(self.ends, ends, strict=True)]
        places = (mx.arange(KEPT) - mx.array(behind)[:, None])[..., None, None]
        known = (places >= 0) & (places < KEPT)
        places = mx.clip(places, 0, KEPT - 1)
        kv, gate = (mx.take_along_axis(side, places, axis=1) for side in (self.kv, self.gate))
        return Windows(mx.where(known, kv, 0), mx.where(known, gate, -mx.inf), tuple(ends))

    def filter_rows(self, indices: Any) -> "Windows":
        """The record of these rows, ``indices`` being a list or an array of numbers."""
        kept = indices.tolist() if hasattr(indices, "tolist") else indices
        ends = tuple(self.ends[row] for row in kept)
        return Windows(self.kv[indices], self.gate[indices], ends)


def read_windows(cache: Any) -> Windows | None:
    held: Windows | None = cache.__dict__.get(WINDOWS)
    if held is None:
        return None
    ends = count_windows(cache, len(held.ends))
    if len(ends) != len(held.ends):  # other rows: set by code that ignores the record
        return None
    return held if ends == held.ends else held.rewind(ends)


def write_windows(cache: Any, windows: Windows | None) -> None:
    if windows is None:
        cache.__dict__.pop(WINDOWS, None)
    else:
        cache.__dict__[WINDOWS] = windows


def count_windows(cache: Any, rows: int = 1) -> tuple[int, ...]:
    """How many windows each row of a cache has pooled, without a device read."""
    lengths = cache.__dict__.get("_pool_lengths")
    return (cache.size(),) * rows if lengths is None else tuple(lengths)


def make_no_windows(like: Sequence[Any], ends: Sequence[int]) -> Windows:
    """A record of rows without windows, shaped like the kv and gates in ``like``."""
    kv, gate = like
    shape = (len(ends), KEPT, *kv.shape[-2:])
    return Windows(mx.zeros(shape, kv.dtype), mx.full(shape, -mx.inf, gate.dtype), tuple(ends))


def add_windows(
    held: Windows, ready: Sequence[Any], added: Sequence[int]
) -> tuple[list[Any], Windows]:
    """The last window of ``held`` with those that follow it, and the new record.

    Each row has ``added`` of the windows ``ready``; the rest is padding.
    """
    pairs = zip((held.kv, held.gate), ready, strict=True)
    sides = [mx.concatenate(pair, axis=1) for pair in pairs]
    # Copies: a slice would keep the whole array alive.
    kv, gate = (mx.contiguous(cut_last(side, added)) for side in sides)
    ends = tuple(end + count for end, count in zip(held.ends, added, strict=True))
    return [side[:, KEPT - 1 :] for side in sides], Windows(kv, gate, ends)


def cut_last(side: Any, added: Sequence[int]) -> Any:
    """The ``KEPT`` windows of each row that end with its last."""
    first = added[0]
    if all(count == first for count in added):
        return side[:, first : first + KEPT]
    places = mx.array(added)[:, None] + mx.arange(KEPT)
    return mx.take_along_axis(side, places[..., None, None], axis=1)


def join_windows(caches: Sequence[Any]) -> Windows | None:
    """A record of all rows of these caches, in their order; None if no cache has one."""
    held = [read_windows(cache) for cache in caches]
    known = next(filter(None, held), None)
    if known is None:
        return None
    parts = [
        own or make_no_windows((known.kv, known.gate), count_windows(cache))
        for own, cache in zip(held, caches, strict=True)
    ]
    kv, gate = (mx.concatenate([getattr(one, side) for one in parts]) for side in ("kv", "gate"))
    return Windows(kv, gate, sum((one.ends for one in parts), ()))


ENTRY = RowEntry(WINDOWS, read_windows, write_windows, join_windows)


def unpack_last(last: Sequence[Any], ends: Sequence[int]) -> Windows:
    """A record of rows of which only the last window and its gates were saved."""
    earlier = make_no_windows(last, [end - 1 for end in ends])
    return add_windows(earlier, [side[:, None] for side in last], [1] * len(ends))[1]
