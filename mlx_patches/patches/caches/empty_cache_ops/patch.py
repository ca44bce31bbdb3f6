"""Make every method of the contract accept an empty cache."""

import copy
from collections.abc import Callable
from typing import Any

from ....core.verbs import Factory, Patch, in_caches, mx, wrap
from ..._shared.rows import is_empty, make_empty_row, start_batch
from ..._shared.targets import CACHES, around_setter, at


def make_state(extra: tuple[str, ...]) -> Factory:
    """Factory of ``state``, which is keys, values and the ``extra`` attributes."""

    def save(get: Callable[[Any], Any], cache: Any) -> Any:
        # ``is_empty`` inlined: engines read every layer's state after each prompt chunk.
        return save_empty(cache, extra) if cache.keys is None else get(cache)

    def restore(put: Callable[[Any, Any], None], cache: Any, saved: Any) -> None:
        # A later release's state is longer, and its setter accepts None.
        if saved[0] is not None or len(saved) != 2 + len(extra):
            return put(cache, saved)
        cache.keys = cache.values = None
        for name, value in zip(extra, saved[2:], strict=True):
            setattr(cache, name, value)
        # The release's setter derives these from the keys: ``offset`` of a solo cache, ``_idx`` of
        # a batch.
        setattr(cache, "_idx" if extra else "offset", 0)

    return around_setter(restore, save)


def save_empty(cache: Any, extra: tuple[str, ...]) -> tuple[Any, ...]:
    """An empty cache's state: no keys, no values, and the ``extra`` attributes."""
    return (None, None, *(getattr(cache, name) for name in extra))


def extract_row(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    return make_empty_row(cache) if is_empty(cache) else extract(cache, idx)


def extract_slots(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` of a recurrent cache; an unused slot stays unused."""
    if not any(map(is_unused, cache.cache)):
        return extract(cache, idx)
    kind: Any = type(cache)
    row = kind.__new__(kind)  # not every class takes a number of slots
    row.left_padding = row.lengths = None
    row.cache = [None if is_unused(slot) else slot[idx : idx + 1] for slot in cache.cache]
    return row


def is_unused(slot: Any) -> bool:
    return slot is None


def merge_rows(merge: Callable[[Any, Any], Any], cls: Any, caches: Any) -> Any:
    written = next((row for row in caches if not is_empty(row)), None)
    if written is None:
        return make_empty_batch(cls, caches)
    return merge(cls, [add_no_tokens(row, written) if is_empty(row) else row for row in caches])


def make_empty_batch(cls: Any, rows: Any) -> Any:
    padding = [0] * len(rows)
    size = getattr(rows[0], "max_size", None)
    return cls(padding) if size is None else cls(size, padding)


def add_no_tokens(row: Any, like: Any) -> Any:
    """A copy of an empty solo cache whose keys and values are zero columns of ``like``'s."""
    out = copy.copy(row)
    out.keys, out.values = (side[:, :, :0] for side in (like.keys, like.values))
    return out


def extend_rows(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    sides = (cache, other)
    written = next((side for side in sides if not is_empty(side)), None)
    if written is not None:
        for side in sides:
            if is_empty(side):
                start_batch(side, written)
        return extend(cache, other)
    cache.offset = mx.concatenate([cache.offset, other.offset])
    cache.left_padding = mx.concatenate([cache.left_padding, other.left_padding])


def filter_rows(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    if is_empty(cache):
        filter_empty(cache, batch_indices)
    elif 0 in getattr(cache.values, "shape", ()):
        filter_keys(keep, cache, batch_indices)
    else:
        keep(cache, batch_indices)


def filter_keys(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """Keep only these rows of a cache whose values have width 0, which MLX cannot index."""
    cache.values = cache.keys
    try:
        keep(cache, batch_indices)
    finally:
        cache.values = cache.values[..., :0]


def filter_empty(cache: Any, batch_indices: Any) -> None:
    cache.offset = cache.offset[batch_indices]
    cache.left_padding = cache.left_padding[batch_indices]


def finalize_rows(finalize: Callable[[Any], None], cache: Any) -> None:
    if is_empty(cache):
        forget_padding(cache)
    else:
        finalize(cache)


def forget_padding(cache: Any) -> None:
    """Clear the announced right padding, of which no column was written."""
    for name in ("_right_padding", "_lengths"):
        if getattr(cache, name, None) is not None:
            setattr(cache, name, None)


_BATCH = ("BatchKVCache", "BatchRotatingKVCache")
_STATES: dict[str, Factory] = {
    "KVCache.state": make_state(()),
    "RotatingKVCache.state": make_state(()),
    **{f"{name}.state": make_state(("offset", "left_padding")) for name in _BATCH},
}


def in_batches(method: str) -> tuple[str, ...]:
    return in_caches(" ".join(f"{name}.{method}" for name in _BATCH))


EMPTY_CACHE_OPS = Patch(
    id="empty-cache-ops",
    formerly="never-written",
    severity="crash",
    targets=(
        *at(CACHES, _STATES),
        *wrap(in_batches("extract"), extract_row),
        *wrap(in_batches("merge"), merge_rows),
        *wrap(in_batches("filter"), filter_rows),
        *wrap(in_batches("extend"), extend_rows),
        *wrap(in_batches("finalize"), finalize_rows),
        *wrap(in_caches("ArraysCache.extract"), extract_slots),
    ),
    doc="""mlx-lm and mlx-vlm crash when saving an empty cache or taking a row from an empty
    batch.

    Why: Some caches stay empty: Gemma's shared layers read another layer's cache, an expert may
        receive no token, a new prompt has no token yet. ``state``, ``extract``, ``merge``,
        ``filter``, ``extend`` and ``finalize`` assume that there are keys, so every batch operation
        of such a model raises, and so does merging a new prompt with one that has a history. A
        recurrent cache with unused slots raises in ``extract``. MLX before 0.30.6 cannot index
        values of width 0, which DeepSeek V3.2's indexer keeps.
    How: An empty cache saves None for its keys and values, and its rows are empty caches. With
        written rows it gets keys of zero columns. ``finalize`` moves no padding in it. Values of
        width 0 are filtered as views of the keys.
    Upstream: mlx-lm 0.30.4 merges empty caches with written ones; 0.31.2 merges, filters and
        extends them, 0.32.0 saves them. No release extracts a row from an empty batch. In mlx-vlm
        0.7.10 ``BatchKVCache.finalize`` accepts one.
    Retire when: ``extract`` accepts an empty batch in every supported release.
    """,
)
