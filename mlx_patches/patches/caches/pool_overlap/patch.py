"""DeepSeek V4 forgets the window before the one that it pools, in every call but the first.

Why
    Where its ``Compressor`` pools windows of 4 tokens, each pooled token also reads the window
    before its own. The pooling cache holds the tokens of an unfinished window alone, so
    ``_overlap_compress_kv`` puts nothing in the place of the window before the first of a call:
    right at the start of a text, wrong in a later piece of a prompt, in a second turn, and for
    every window that is completed by a decode step.
How
    The compressor gets the pooling cache inside an object that puts the last window before those
    that a call completes, and takes the token that is pooled from it out again. The cache keeps
    its last windows (``windows``); they are merged, extended, filtered, extracted, saved and
    restored with its rows. A saved state has the last window in front of the unfinished one, a
    batch's behind it: where the release reads such a state, it drops it. A call before the first
    window computes what it did.
Upstream
    Not fixed in mlx-vlm 0.7.10.
Retire when
    ``Compressor`` reads the window before the first of a call from its cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import VLM_CACHES, around_setter, at
from .windows import (
    ENTRY,
    WINDOWS,
    Windows,
    add_windows,
    count_windows,
    no_windows,
    read_windows,
    unpack_last,
    write_windows,
)

# -- pooling -------------------------------------------------------------------------------


class WithLastWindow:
    """A pooling cache as the compressor gets it: with the window before those of a call."""

    def __init__(self, cache: Any):
        self.cache = cache
        self.extra = 0  # the pooled tokens that the cache already has

    def accumulate_windows(self, kv: Any, gate: Any, offset: Any) -> tuple[Any, Any, Any]:
        """The last window and those that these tokens complete, and the position of the first."""
        import mlx.core as mx

        held = read_windows(self.cache)
        kv, gate, first = self.cache.accumulate_windows(kv, gate, offset)
        if not kv.shape[1]:
            return kv, gate, first
        ratio = self.cache.ratio
        ready = [mx.unflatten(side, 1, (-1, ratio)) for side in (kv, gate)]
        rows, number = ready[0].shape[:2]
        before = held or no_windows(ready, count_windows(self.cache, rows))
        added = count_added(self.cache, rows, number)
        sides, kept = add_windows(before, ready, added)
        write_windows(self.cache, kept)
        if held is not None:
            self.extra = 1
            kv, gate = (side.flatten(1, 2) for side in sides)
            first = first - ratio
        # The record is computed with the step, or it keeps the arrays of a prompt alive.
        return mx.depends(kv, [kept.kv, kept.gate]), gate, first

    def update_and_fetch(self, pooled: Any) -> Any:
        """Add the pooled tokens that the cache does not have yet, and return all."""
        return self.cache.update_and_fetch(pooled[:, self.extra :])


def count_added(cache: Any, rows: int, number: int) -> Sequence[int]:
    """How many of ``number`` windows each row of a cache has completed, as its update counts."""
    if "_pool_lengths" not in cache.__dict__:
        return [number] * rows
    counts = zip(cache._processed, cache.remainder, cache._pool_lengths, strict=True)
    return [(fed - left) // cache.ratio - pooled for fed, left, pooled in counts]


def compressed(
    call: Callable[..., Any], compressor: Any, x: Any, pool_cache: Any, offset: Any
) -> Any:
    """Pool the windows that these tokens complete, each with the one before it."""
    return call(compressor, x, WithLastWindow(pool_cache), offset)


def overlaps(compressor: Any, x: Any, pool_cache: Any, offset: Any) -> bool:
    """Whether a pooled token also reads the window before its own, and a cache may have it."""
    return pool_cache is not None and bool(compressor.overlap)


# -- state ---------------------------------------------------------------------------------

# A state that came before the ratio that its setter needs: ``from_state`` of the base class sets
# the ratio afterwards.
EARLY = "_mlx_patches_early_state"


def add_last(get: Callable[[Any], Any], cache: Any, join: Callable[[Any, Any], Any]) -> Any:
    """The state of a cache, the last windows joined to the unfinished ones."""
    windows = read_windows(cache)
    if windows is None:
        return get(cache)
    *unfinished, pooled = get(cache)
    return (*map(join, unfinished, (windows.kv[:, -1], windows.gate[:, -1])), pooled)


def save_row(get: Callable[[Any], Any], cache: Any) -> Any:
    """The state of a cache, its last window in front of the unfinished one."""
    import mlx.core as mx

    return add_last(
        get, cache, lambda left, last: last if left is None else mx.concatenate([last, left], 1)
    )


def restore_row(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the state of a cache, and its last window if the state has it."""
    if not hasattr(cache, "ratio"):
        cache.__dict__[EARLY] = saved
        return
    put(cache, saved)  # keeps what is left after whole windows
    kv, gate, _ = saved
    windows = None
    if kv is not None and kv.shape[1] >= cache.ratio:
        last = [side[:, : cache.ratio] for side in (kv, gate)]
        windows = unpack_last(last, count_windows(cache, kv.shape[0]))
    write_windows(cache, windows)


def restore_ratio(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the ratio of a cache, then the state that came before it."""
    put(cache, saved)
    if EARLY in cache.__dict__:
        cache.state = cache.__dict__.pop(EARLY)


def save_batch(get: Callable[[Any], Any], cache: Any) -> Any:
    """The state of a batch, its last windows behind the unfinished ones."""
    import mlx.core as mx

    def join(left: Any, last: Any) -> Any:
        return mx.concatenate([mx.zeros_like(last) if left is None else left, last], 1)

    return add_last(get, cache, join)


def restore_batch(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the state of a batch, and its last windows if the state has them."""
    write_windows(cache, None)
    put(cache, saved)
    split_off(cache)


def restore_numbers(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the numbers of a batch, whose state may have come before them."""
    put(cache, saved)
    split_off(cache)
    if (held := vars(cache).get(WINDOWS)) is not None:
        write_windows(cache, replace(held, ends=count_windows(cache)))


def split_off(cache: Any) -> None:
    """Take the last windows from behind the unfinished ones of a batch, once the ratio is known."""
    kv, ratio = vars(cache).get("buf_kv"), vars(cache).get("ratio")
    if kv is None or ratio is None or kv.shape[1] != 2 * ratio:
        return
    sides = (kv, cache.buf_gate)
    counts = vars(cache).get("_pool_lengths", [0] * kv.shape[0])
    write_windows(cache, unpack_last([side[:, ratio:] for side in sides], counts))
    cache.buf_kv, cache.buf_gate = (side[:, :ratio] for side in sides)


# -- the prefix cache ----------------------------------------------------------------------


def take_snapshot(take: Callable[[Any], Any], cache: Any) -> Any:
    """A snapshot for the prefix cache, with the last windows."""
    windows = read_windows(cache)
    if windows is None:
        return take(cache)
    return {**take(cache), WINDOWS: (windows.kv, windows.gate, list(windows.ends))}


def restore_snapshot(restore: Callable[[Any, Any], None], cache: Any, snapshot: Any) -> None:
    """Restore a snapshot and its last windows."""
    restore(cache, snapshot)
    kv, gate, ends = snapshot.get(WINDOWS, (None, None, ()))
    write_windows(cache, None if kv is None else Windows(kv, gate, tuple(ends)))


def clone(
    clone: Callable[..., Any], adapter: Any, c: Any, *, eval_targets: Any, **kwargs: Any
) -> Any:
    """A copy of a cache for the prefix cache, with its last windows."""
    copied = clone(adapter, c, eval_targets=eval_targets, **kwargs)
    if (windows := read_windows(c)) is not None:
        write_windows(copied, windows)
        eval_targets.extend((windows.kv, windows.gate))
    return copied


def save_entry(
    save: Callable[..., Any], store: Any, c: Any, prefix: str, arrays: Any, metadata: Any
) -> Any:
    """Add a cache to a file of the prefix cache, with its last windows."""
    done = save(store, c, prefix, arrays, metadata)
    windows = read_windows(c) if hasattr(c, "buf_kv") else None
    if done and windows is not None:
        # As they are: the thread that writes the file computes nothing.
        arrays.update(zip(_names(prefix), (windows.kv, windows.gate), strict=True))
    return done


def load_entry(
    load: Callable[..., Any],
    store: Any,
    path: Any,
    tensor_entries: Any,
    metadata: Any,
    data_start: Any,
    prefix: str,
    *,
    eval_targets: Any,
    **kwargs: Any,
) -> Any:
    """Read a cache from a file of the prefix cache, with its last windows."""
    kwargs["eval_targets"] = eval_targets
    cache = load(store, path, tensor_entries, metadata, data_start, prefix, **kwargs)
    entries = [tensor_entries.get(name) for name in _names(prefix)]
    if hasattr(cache, "buf_kv") and all(entries):
        read = inspect.unwrap(load).__globals__["_read_safetensors_tensor"]
        kv, gate = (read(path, data_start, entry) for entry in entries)
        if kv is not None and gate is not None:
            write_windows(cache, Windows(kv, gate, count_windows(cache)))
            eval_targets.extend((kv, gate))
    return cache


def _names(prefix: str) -> list[str]:
    return [f"{prefix}{WINDOWS}_{side}" for side in ("kv", "gate")]


# -- targets -------------------------------------------------------------------------------

_MODEL = ("mlx-vlm", "mlx_vlm.models.deepseek_v4.language")
_STATES = {
    "PoolingCache.state": around_setter(restore_row, save_row),
    "PoolingCache.meta_state": around_setter(restore_ratio),
    "BatchPoolingCache.state": around_setter(restore_batch, save_batch),
    "BatchPoolingCache.meta_state": around_setter(restore_numbers),
    "PoolingCache.prefix_cache_snapshot": around(take_snapshot),
    "PoolingCache.prefix_cache_restore": around(restore_snapshot),
}
_FILES = {
    "DiskBlockStore._snapshot_exact_cache_entry": around(save_entry),
    "DiskBlockStore._load_exact_cache_entry": around(load_entry),
}

PATCH = Patch(
    id="pool-overlap",
    summary=(
        "DeepSeek V4 in mlx-vlm: wrong output after the first chunk, its "
        "pooling ignores earlier text"
    ),
    wrong_alone="deepseek_v4",
    changes_alone=True,
    targets=(
        Target(
            *_MODEL,
            "Compressor.__call__",
            around(compressed),
            fingerprint_of=("Compressor.__call__", "_overlap_compress_kv"),
            when=overlaps,
        ),
        *ENTRY.targets(VLM_CACHES, "BatchPoolingCache"),
        *at((VLM_CACHES,), _STATES, supports=True),
        *at(
            (("mlx-vlm", "mlx_vlm.apc_adapters"),),
            {"PoolingCacheCloneAdapter.clone": around(clone)},
            supports=True,
        ),
        *at((("mlx-vlm", "mlx_vlm.apc"),), _FILES, supports=True),
    ),
)
