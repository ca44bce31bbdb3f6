"""mlx-lm and mlx-vlm: a batch with max_kv_size drops the first tokens, a single request keeps them.

Why: ``RotatingKVCache(max_size, keep=4)`` never overwrites a row's first tokens, its attention
    sinks. ``BatchRotatingKVCache`` has no ``keep``: a row that outgrows its window loses them, and
    its output differs from the solo run. Up to mlx-lm 0.31.3 the batch generator makes its caches
    without ``keep``, although ``make_prompt_cache`` sets it.
How: A batch remembers the ``keep`` of its rows. Before columns are dropped, the kept tokens in them
    move to the next columns, and stay the oldest. A decode step moves one column, a prompt chunk
    ``keep`` columns, without a device read. A batch without ``keep``, or one that drops nothing,
    runs only the release's code. The generator's caches get the
    ``keep`` that ``make_prompt_cache`` sets for the model; models with ``make_cache`` do not
    change.
Upstream: mlx-lm 0.32.0 makes the generator's caches with ``make_prompt_cache``. The batch cache is
    not fixed in mlx-lm 0.32.2.
Retire when: mlx-lm's ``BatchRotatingKVCache`` keeps first tokens.
"""

import functools
import inspect
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ....core.verbs import Patch, add, before, in_caches, mx, result, wrap
from ..._shared.rows import cut_to_window

_BATCH = "BatchRotatingKVCache"


def read_keep(cache: Any) -> int:
    """The number of first tokens that each row keeps; 0 if it was not set."""
    return int(cache.__dict__.get("keep", 0))


def has_keep(cache: Any, /) -> bool:
    return "keep" in cache.__dict__


def merges_keep(cls: Any, caches: Sequence[Any], /) -> bool:
    return any(map(operator.attrgetter("keep"), caches))


def joins_keep(cache: Any, other: Any, /) -> bool:
    return cache.keys is None and (has_keep(cache) or has_keep(other))


def save_from_step(cache: Any, /) -> None:
    """Move the kept tokens out of the columns that a decode step drops."""
    if read_keep(cache) and cache.keys is not None and not is_padded(cache):
        width = cache.keys.shape[2]
        if width > cache.max_size:
            move_kept(cache, width - cache.max_size + 1)
        elif width == cache.max_size and (cache.rotated or cache._idx == width):
            move_oldest(cache)


def save_from_chunk(cache: Any, /) -> None:
    """Move the kept tokens out of the columns that a prompt chunk drops."""
    if read_keep(cache) and cache.keys is not None:
        cache._temporal_order()
        clamp_padding(cache)
        lost = cache._idx - cache.max_size + 1
        if lost > 0:
            move_kept(cache, lost)


def clamp_before_finalize(cache: Any, /) -> None:
    """Make the left padding at least zero if right padding is pending."""
    if read_keep(cache) and is_padded(cache):
        clamp_padding(cache)


def clamp_padding(cache: Any) -> None:
    cache.left_padding = mx.maximum(cache.left_padding, 0)


def is_padded(cache: Any) -> bool:
    return cache.__dict__.get("_lengths") is not None


def move_oldest(cache: Any) -> None:
    """Move the oldest column right behind the other kept ones, in rows without padding."""
    width = cache.keys.shape[2]
    old = cache._idx % width
    new = (old + cache.keep) % width
    is_full = (cache.left_padding <= 0)[:, None, None, None]
    for side in (cache.keys, cache.values):
        kept, other = side[..., old : old + 1, :], side[..., new : new + 1, :]
        side[..., new : new + 1, :] = mx.where(is_full, kept, other)


def move_kept(cache: Any, lost: int) -> None:
    """Move the kept columns right behind the first ``lost`` ones, in rows that would lose them.

    The columns are in order of age. Pending right padding becomes left padding before columns are
    dropped.
    """
    padding = cache.left_padding
    rolled = mx.zeros_like(padding)
    if is_padded(cache):
        rolled = mx.maximum(0, cache.offset - cache._lengths)
    columns = mx.arange(cache.keep)
    source = mx.maximum(padding, 0)[:, None] + columns
    target = mx.maximum(lost - rolled, 0)[:, None] + columns
    loses = (padding + rolled < lost)[:, None, None, None]

    def move(side: Any) -> Any:
        shape = (*side.shape[:2], cache.keep, side.shape[3])
        here, there = (mx.broadcast_to(at[:, None, :, None], shape) for at in (source, target))
        kept, other = (mx.take_along_axis(side, at, axis=2) for at in (here, there))
        return mx.put_along_axis(side, there, mx.where(loses, kept, other), axis=2)

    cache.keys, cache.values = move(cache.keys), move(cache.values)


def mask_with_keep(
    make: Callable[..., Any],
    cache: Any,
    N: int,
    window_size: int | None = None,
    return_array: bool = False,
) -> Any:
    """The mask (rows, 1, N, columns) of a prompt chunk, in which rows see their kept tokens.

    It changes only if the release masks a solo cache in this way, as mlx-vlm 0.7.10 does: the kept
    and the newest tokens share the window.
    """
    keep = read_keep(cache)
    own = window_size in (None, cache.max_size)
    if N == 1 or not keep or not own or not solo_mask_has_keep(type(cache).__module__):
        return make(cache, N, window_size=window_size, return_array=return_array)
    causal, newest = (
        make(cache, N, window_size=size, return_array=True)
        for size in (2 * cache.max_size + N, cache.max_size - keep)
    )
    kept = mx.cumsum(causal[..., -1:, :].astype(mx.int32), axis=-1) <= keep
    return causal & (kept | newest)


@functools.cache
def solo_mask_has_keep(module: str) -> bool:
    solo = getattr(sys.modules[module], "RotatingKVCache", None)
    return solo is not None and "keep" in inspect.unwrap(solo.make_mask).__code__.co_names


def merge_rows(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    keeps = {row.keep for row in caches}
    keep = keeps.pop() if len(keeps) == 1 else 0
    if not 0 < keep < caches[0].max_size:
        return merge(cls, caches)
    batch = merge(cls, [cut_to_window(row, keep) for row in caches])
    batch.keep = keep
    return batch


def set_row_keep(row: Any, batch: Any, /) -> Any:
    row.keep = read_keep(batch)
    return row


def adopt_keep(cache: Any, other: Any, /) -> None:
    """Give an empty cache that is extended the other's ``keep``."""
    if cache.keys is None:
        cache.keep = read_keep(other)


def is_limited(generator: Any, /) -> bool:
    return generator.max_kv_size is not None


def set_new_row_keep(caches: list[Any], generator: Any, /) -> list[Any]:
    return set_keep(caches, generator.model, generator.max_kv_size)


def make_batch_with_keep(
    make: Callable[..., list[Any]], model: Any, left_padding: Any, *args: Any, **kwargs: Any
) -> list[Any]:
    caches = make(model, left_padding, *args, **kwargs)
    # Up to mlx-lm 0.30.4 there is no such argument.
    return set_keep(caches, model, args[0] if args else kwargs.get("max_kv_size"))


def set_keep(caches: list[Any], model: Any, max_kv_size: int | None) -> list[Any]:
    if max_kv_size is None or hasattr(model, "make_cache"):
        return caches
    from mlx_lm.models.cache import make_prompt_cache

    for layer, own in zip(caches, make_prompt_cache(model, max_kv_size), strict=True):
        if hasattr(layer, "keep") and layer.keep == 0:
            layer.keep = getattr(own, "keep", 0)
    return caches


def _in_batch(method: str) -> tuple[str, ...]:
    return in_caches(f"{_BATCH}.{method}")


PATCH = Patch(
    id="rotating-keep",
    severity="feature",
    every_model=True,
    targets=(
        *add(_in_batch("keep"), 0, f"{_BATCH}.__init__", f"{_BATCH}.merge"),
        *before(_in_batch("_update_in_place"), save_from_step, when=has_keep),
        *before(_in_batch("_update_concat"), save_from_chunk, when=has_keep),
        *before(_in_batch("finalize"), clamp_before_finalize, when=has_keep),
        *wrap(_in_batch("merge"), merge_rows, when=merges_keep),
        *result(_in_batch("extract"), set_row_keep),
        *before(_in_batch("extend"), adopt_keep, when=joins_keep),
        *wrap(f"mlx_vlm.models.cache:{_BATCH}.make_mask", mask_with_keep, when=has_keep),
        *result(
            "mlx_lm.generate:BatchGenerator._make_new_cache", set_new_row_keep, when=is_limited
        ),
        *wrap("mlx_lm.generate:_make_cache", make_batch_with_keep),
    ),
)
