"""A batch with ``max_kv_size`` forgets the first tokens that each row keeps alone.

Why
    ``RotatingKVCache(max_size, keep=4)`` never overwrites a row's first tokens, to which
    attention clings. ``BatchRotatingKVCache`` has no such place: a row that outgrows its window
    loses them, and its text drifts from what it says alone.
How
    A batch remembers ``keep`` of its rows. Before columns are lost, the first tokens of the rows
    that would lose them are moved behind those: in order of age they stay the oldest. A decode
    step moves one column, a piece of a prompt as many as are kept; nothing is read from the
    device, and a batch without ``keep`` or with room left is the release's own.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    mlx-lm's ``BatchRotatingKVCache`` keeps first tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Attribute, Patch, Target, around

_BATCH = "BatchRotatingKVCache"


def read_keep(cache: Any) -> int:
    """How many first tokens each row keeps; 0 unless it was set."""
    return int(cache.__dict__.get("keep", 0))


def stepped(update: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """A decode step's keys and values; the columns that it overwrites hold no kept token."""
    # Asked in each layer and step: a batch that never kept anything pays for no call.
    if "keep" not in cache.__dict__:
        return update(cache, keys, values)
    if read_keep(cache) and cache.keys is not None and not is_padded(cache):
        width = cache.keys.shape[2]
        if width > cache.max_size:
            move_kept(cache, width - cache.max_size + 1)
        elif width == cache.max_size and (cache.rotated or cache._idx == width):
            move_oldest(cache)
    return update(cache, keys, values)


def joined(update: Callable[..., Any], cache: Any, keys: Any, values: Any) -> Any:
    """A piece's keys and values; the columns that are cut for it hold no kept token."""
    if read_keep(cache) and cache.keys is not None:
        cache._temporal_order()
        forget_lost_padding(cache)
        lost = cache._idx - cache.max_size + 1
        if lost > 0:
            move_kept(cache, lost)
    return update(cache, keys, values)


def finalized(finalize: Callable[..., Any], cache: Any) -> Any:
    """A prompt whose right padding becomes left padding."""
    if read_keep(cache) and is_padded(cache):
        forget_lost_padding(cache)
    return finalize(cache)


def forget_lost_padding(cache: Any) -> None:
    """Count the padding that is there: the release goes on counting down as columns are lost."""
    import mlx.core as mx

    cache.left_padding = mx.maximum(cache.left_padding, 0)


def is_padded(cache: Any) -> bool:
    """Whether right padding is pending."""
    return cache.__dict__.get("_lengths") is not None


def move_oldest(cache: Any) -> None:
    """Move the oldest column behind the kept ones, in rows that have no padding left."""
    import mlx.core as mx

    width = cache.keys.shape[2]
    old = cache._idx % width
    new = (old + cache.keep) % width
    is_full = (cache.left_padding <= 0)[:, None, None, None]
    for side in (cache.keys, cache.values):
        kept, other = side[..., old : old + 1, :], side[..., new : new + 1, :]
        side[..., new : new + 1, :] = mx.where(is_full, kept, other)


def move_kept(cache: Any, lost: int) -> None:
    """Move the kept columns behind the first ``lost`` ones, in rows that would lose them.

    The columns are in order of age. Right padding that is pending becomes left padding before
    the columns are lost.
    """
    import mlx.core as mx

    padding = cache.left_padding
    rolled = mx.zeros_like(padding)
    if is_padded(cache):
        rolled = mx.maximum(0, cache.offset - cache._lengths)
    columns = mx.arange(cache.keep)
    source = mx.maximum(padding, 0)[:, None] + columns
    target = mx.maximum(lost - rolled, 0)[:, None] + columns
    loses = (padding + rolled < lost)[:, None, None, None]

    def moved(side: Any) -> Any:
        shape = (*side.shape[:2], cache.keep, side.shape[3])
        here, there = (mx.broadcast_to(at[:, None, :, None], shape) for at in (source, target))
        kept, other = (mx.take_along_axis(side, at, axis=2) for at in (here, there))
        return mx.put_along_axis(side, there, mx.where(loses, kept, other), axis=2)

    cache.keys, cache.values = moved(cache.keys), moved(cache.values)


def merge_rows(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of rows that keeps the first tokens which all of them keep."""
    keeps = {row.keep for row in caches}
    keep = keeps.pop() if len(keeps) == 1 else 0
    if not 0 < keep < caches[0].max_size:
        return merge(cls, caches)
    batch = merge(cls, [cut_behind(row) for row in caches])
    batch.keep = keep
    return batch


def cut_behind(row: Any) -> Any:
    """A row that holds its kept tokens and the newest in order of age, a window in all.

    The row itself where it does so already, or was never written. It is not touched.
    """
    size = min(row.offset, row.max_size)
    if row.keys is None or (row._idx == size and row.keys.shape[2] <= row.max_size):
        return row
    cut = copy.copy(row)
    cut.keys, cut.values = (
        take_kept(row._temporal_order(side), row.keep, size) for side in (row.keys, row.values)
    )
    cut._idx = size
    return cut


def take_kept(side: Any, keep: int, size: int) -> Any:
    """The first ``keep`` and the newest columns of keys or values, ``size`` in all."""
    import mlx.core as mx

    if side.shape[2] <= size:
        return side
    return mx.concatenate([side[..., :keep, :], side[..., keep - size :, :]], axis=2)


def extract_row(extract: Callable[..., Any], cache: Any, idx: int) -> Any:
    """The row's cache, which keeps what the batch kept of it."""
    row = extract(cache, idx)
    row.keep = read_keep(cache)
    return row


def extended(extend: Callable[..., Any], cache: Any, other: Any) -> Any:
    """More rows; a batch that holds nothing yet keeps what they keep."""
    if cache.keys is None:
        cache.keep = read_keep(other)
    return extend(cache, other)


PATCH = Patch(
    id="rotating-keep",
    summary="a batch with max_kv_size forgets the first tokens that each row keeps alone",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            f"{_BATCH}.keep",
            lambda original: Attribute("keep", read_keep),
            body=(f"{_BATCH}.__init__", f"{_BATCH}.merge"),
            adds=True,
        ),
        *(
            Target("mlx-lm", "mlx_lm.models.cache", f"{_BATCH}.{name}", around(wrapper))
            for name, wrapper in (
                ("_update_in_place", stepped),
                ("_update_concat", joined),
                ("finalize", finalized),
                ("merge", merge_rows),
                ("extract", extract_row),
                ("extend", extended),
            )
        ),
    ),
    probe="mlx_patches.probes.rotating_keep:probe",
    module=__name__,
)
