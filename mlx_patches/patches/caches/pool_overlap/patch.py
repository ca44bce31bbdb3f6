"""DeepSeek V4 in mlx-vlm: wrong output after the first chunk, its pooling ignores earlier text.

Why: When its ``Compressor`` pools windows of 4 tokens, each pooled token also reads the previous
    window. The pooling cache only holds the tokens of the unfinished window, so
    ``_overlap_compress_kv`` treats the first window of every call as if no text came before it:
    right at the start of a text, wrong in a later chunk, in a second turn, and for every window
    that a decode step completes.
How: The compressor gets the pooling cache inside an object that prepends the last window to those
    that a call completes, and drops the token pooled from it. The cache keeps its last windows
    (``windows``); they are merged, extended, filtered, extracted, saved and restored with its rows.
    A saved state has the last window in front of the unfinished one, a batch's state behind it; a
    release without the patch drops it on restore. A first call computes the same as before.
Upstream: Not fixed in mlx-vlm 0.7.10.
Retire when: ``Compressor`` reads the window before the first one of a call from its cache.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....core.verbs import Patch, after, argument, mx, result, support, wrap
from ..._shared.targets import VLM_CACHES, around_setter, at
from .windows import (
    ENTRY,
    WINDOWS,
    Windows,
    add_windows,
    count_windows,
    make_no_windows,
    read_windows,
    unpack_last,
    write_windows,
)


class WithLastWindow:
    """A pooling cache for the compressor, with the window before those of a call."""

    def __init__(self, cache: Any):
        self.cache = cache
        self.extra = 0  # how many pooled tokens the cache already has

    def accumulate_windows(self, kv: Any, gate: Any, offset: Any) -> tuple[Any, Any, Any]:
        """The last window, those that these tokens complete, and the position of the first."""
        held = read_windows(self.cache)
        kv, gate, first = self.cache.accumulate_windows(kv, gate, offset)
        if not kv.shape[1]:
            return kv, gate, first
        ratio = self.cache.ratio
        ready = [mx.unflatten(side, 1, (-1, ratio)) for side in (kv, gate)]
        rows, number = ready[0].shape[:2]
        before = held or make_no_windows(ready, count_windows(self.cache, rows))
        added = count_added(self.cache, rows, number)
        sides, kept = add_windows(before, ready, added)
        write_windows(self.cache, kept)
        if held is not None:
            self.extra = 1
            kv, gate = (side.flatten(1, 2) for side in sides)
            first = first - ratio
        # The record is computed with the step, else it would keep the prompt's arrays alive.
        return mx.depends(kv, [kept.kv, kept.gate]), gate, first

    def update_and_fetch(self, pooled: Any) -> Any:
        """Add the pooled tokens that the cache does not have yet, and return them all."""
        return self.cache.update_and_fetch(pooled[:, self.extra :])


def count_added(cache: Any, rows: int, number: int) -> Sequence[int]:
    """How many of ``number`` windows each row of a cache has completed."""
    if "_pool_lengths" not in cache.__dict__:
        return [number] * rows
    counts = zip(cache._processed, cache.remainder, cache._pool_lengths, strict=True)
    return [(fed - left) // cache.ratio - pooled for fed, left, pooled in counts]


def add_last_window(pool_cache: Any) -> WithLastWindow:
    return WithLastWindow(pool_cache)


def has_overlap(compressor: Any, /, pool_cache: Any) -> bool:
    """Whether a pooled token also reads the previous window, and a cache may have it."""
    return pool_cache is not None and bool(compressor.overlap)


# A state that was set before the ratio, which its setter needs: ``from_state`` of the base class
# sets the ratio afterwards.
EARLY = "_mlx_patches_early_state"


def join_last(get: Callable[[Any], Any], cache: Any, join: Callable[[Any, Any], Any]) -> Any:
    """The state of a cache, with the last windows joined to the unfinished ones."""
    windows = read_windows(cache)
    if windows is None:
        return get(cache)
    *unfinished, pooled = get(cache)
    return (*map(join, unfinished, (windows.kv[:, -1], windows.gate[:, -1])), pooled)


def save_row(get: Callable[[Any], Any], cache: Any) -> Any:
    """The state of a cache, with its last window in front of the unfinished one."""
    return join_last(
        get, cache, lambda left, last: last if left is None else mx.concatenate([last, left], 1)
    )


def restore_row(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the state of a cache, and its last window if the state has it."""
    if not hasattr(cache, "ratio"):
        cache.__dict__[EARLY] = saved
        return
    put(cache, saved)  # keeps the tokens after whole windows
    kv, gate, _ = saved
    windows = None
    if kv is not None and kv.shape[1] >= cache.ratio:
        last = [side[:, : cache.ratio] for side in (kv, gate)]
        windows = unpack_last(last, count_windows(cache, kv.shape[0]))
    write_windows(cache, windows)


def restore_ratio(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the ratio of a cache, then a state that was set before it."""
    put(cache, saved)
    if EARLY in cache.__dict__:
        cache.state = cache.__dict__.pop(EARLY)


def save_batch(get: Callable[[Any], Any], cache: Any) -> Any:
    """The state of a batch, with its last windows behind the unfinished ones."""

    def join(left: Any, last: Any) -> Any:
        return mx.concatenate([mx.zeros_like(last) if left is None else left, last], 1)

    return join_last(get, cache, join)


def restore_batch(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the state of a batch, and its last windows if the state has them."""
    write_windows(cache, None)
    put(cache, saved)
    split_off(cache)


def restore_numbers(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
    """Set the numbers of a batch, whose state may have been set before."""
    put(cache, saved)
    split_off(cache)
    if (held := vars(cache).get(WINDOWS)) is not None:
        write_windows(cache, replace(held, ends=count_windows(cache)))


def split_off(cache: Any) -> None:
    """Split the last windows from the unfinished ones of a batch, once the ratio is known."""
    kv, ratio = vars(cache).get("buf_kv"), vars(cache).get("ratio")
    if kv is None or ratio is None or kv.shape[1] != 2 * ratio:
        return
    sides = (kv, cache.buf_gate)
    counts = vars(cache).get("_pool_lengths", [0] * kv.shape[0])
    write_windows(cache, unpack_last([side[:, ratio:] for side in sides], counts))
    cache.buf_kv, cache.buf_gate = (side[:, :ratio] for side in sides)


def add_to_snapshot(snapshot: Any, cache: Any, /) -> Any:
    windows = read_windows(cache)
    if windows is None:
        return snapshot
    return {**snapshot, WINDOWS: (windows.kv, windows.gate, list(windows.ends))}


def restore_from_snapshot(cache: Any, snapshot: Any, /) -> None:
    kv, gate, ends = snapshot.get(WINDOWS, (None, None, ()))
    write_windows(cache, None if kv is None else Windows(kv, gate, tuple(ends)))


def clone_with_windows(
    clone: Callable[..., Any], adapter: Any, c: Any, *, eval_targets: Any, **kwargs: Any
) -> Any:
    copied = clone(adapter, c, eval_targets=eval_targets, **kwargs)
    if (windows := read_windows(c)) is not None:
        write_windows(copied, windows)
        eval_targets.extend((windows.kv, windows.gate))
    return copied


def save_windows(done: bool, /, c: Any, prefix: str, arrays: Any) -> bool:
    """Add the last windows of a cache to a file of the prefix cache."""
    windows = read_windows(c) if hasattr(c, "buf_kv") else None
    if done and windows is not None:
        # Without an operation: the thread that writes the file must not compute.
        arrays.update(zip(_names(prefix), (windows.kv, windows.gate), strict=True))
    return done


def load_windows(
    cache: Any, /, path: Any, tensor_entries: Any, data_start: Any, prefix: str, eval_targets: Any
) -> Any:
    entries = [tensor_entries.get(name) for name in _names(prefix)]
    if hasattr(cache, "buf_kv") and all(entries):
        read_tensor = sys.modules["mlx_vlm.apc"]._read_safetensors_tensor
        kv, gate = (read_tensor(path, data_start, entry) for entry in entries)
        if kv is not None and gate is not None:
            write_windows(cache, Windows(kv, gate, count_windows(cache)))
            eval_targets.extend((kv, gate))
    return cache


def _names(prefix: str) -> list[str]:
    return [f"{prefix}{WINDOWS}_{side}" for side in ("kv", "gate")]


_STATES = {
    "PoolingCache.state": around_setter(restore_row, save_row),
    "PoolingCache.meta_state": around_setter(restore_ratio),
    "BatchPoolingCache.state": around_setter(restore_batch, save_batch),
    "BatchPoolingCache.meta_state": around_setter(restore_numbers),
}
_CACHE = "mlx_vlm.models.cache:PoolingCache"
_STORE = "mlx_vlm.apc:DiskBlockStore"

PATCH = Patch(
    id="pool-overlap",
    wrong_solo="deepseek_v4",
    targets=(
        *argument(
            "mlx_vlm.models.deepseek_v4.language:Compressor.__call__",
            "pool_cache",
            add_last_window,
            fingerprint_of=("Compressor.__call__", "_overlap_compress_kv"),
            when=has_overlap,
        ),
        *ENTRY.targets(VLM_CACHES, "BatchPoolingCache"),
        *support(
            *at((VLM_CACHES,), _STATES),
            *result(f"{_CACHE}.prefix_cache_snapshot", add_to_snapshot),
            *after(f"{_CACHE}.prefix_cache_restore", restore_from_snapshot),
            *wrap("mlx_vlm.apc_adapters:PoolingCacheCloneAdapter.clone", clone_with_windows),
            *result(f"{_STORE}._snapshot_exact_cache_entry", save_windows),
            *result(f"{_STORE}._load_exact_cache_entry", load_windows),
        ),
    ),
)
