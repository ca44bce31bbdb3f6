"""A cache that was never written cannot be saved, and no row can be taken from its batch.

Why
    Some layers never write their cache: Gemma's shared layers read another layer's, an expert
    may get no token, a new prompt has none yet. ``state``, ``extract``, ``merge``, ``filter``,
    ``extend`` and ``finalize`` take keys for granted, so every batch operation of such a model
    dies, and so does a new prompt that is merged with one that has a history. A recurrent cache
    with some slots unused dies in ``extract``.
How
    An empty cache saves None for its keys and values; its rows are empty caches. Beside rows
    that were written it has keys of no tokens; no padding was written to it that ``finalize``
    could move.
Upstream
    mlx-lm 0.30.4 merges one with written ones; 0.31.2 merges, filters and extends them, 0.32.0
    saves them; none extracts. ``BatchKVCache.finalize`` takes them in mlx-vlm 0.7.10.
Retire when
    ``extract`` takes an empty batch in every supported release.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

from ...core.patch import Factory, Patch, Target, around


def is_empty(cache: Any) -> bool:
    """Whether an attention cache was never written."""
    return cache.keys is None


def is_unused(slot: Any) -> bool:
    """Whether a recurrent cache has no state in a slot."""
    return slot is None


def saving(extra: tuple[str, ...]) -> Factory:
    """A factory for ``state``: keys, values and these attributes."""

    def factory(original: property) -> property:
        assert original.fget is not None and original.fset is not None
        get, put = original.fget, original.fset

        @functools.wraps(get)
        def save(cache: Any) -> Any:
            if not is_empty(cache):
                return get(cache)
            return (None, None, *(getattr(cache, name) for name in extra))

        def restore(cache: Any, saved: Any) -> None:
            if saved[0] is not None or len(saved) != 2 + len(extra):
                return put(cache, saved)
            cache.keys = cache.values = None
            for name, value in zip(extra or ("offset",), saved[2:] or (0,), strict=True):
                setattr(cache, name, value)
            if extra:
                cache._idx = 0

        return property(save, restore, original.fdel, original.__doc__)

    return factory


def extracted(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` of an attention cache."""
    return row_of(cache) if is_empty(cache) else extract(cache, idx)


def row_of(cache: Any) -> Any:
    """An empty cache of the kind that a row of this batch would have."""
    caches = sys.modules[type(cache).__module__]
    if hasattr(cache, "max_size"):
        return caches.RotatingKVCache(cache.max_size)
    return caches.KVCache()


def extracted_slots(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` of a recurrent cache; an unused slot stays unused."""
    if not any(map(is_unused, cache.cache)):
        return extract(cache, idx)
    kind: Any = type(cache)
    row = kind.__new__(kind)  # not every class takes a number of slots
    row.left_padding = row.lengths = None
    row.cache = [None if is_unused(slot) else slot[idx : idx + 1] for slot in cache.cache]
    return row


def merged(merge: Callable[[Any, Any], Any], cls: Any, caches: Any) -> Any:
    """A batch of these rows."""
    written = next((row for row in caches if not is_empty(row)), None)
    if written is not None:
        return merge(cls, [blank(row, written) if is_empty(row) else row for row in caches])
    padding = [0] * len(caches)
    size = getattr(caches[0], "max_size", None)
    return cls(padding) if size is None else cls(size, padding)


def blank(row: Any, like: Any) -> Any:
    """An empty row with keys and values of no tokens, else like those of another."""
    out = copy.copy(row)
    out.keys, out.values = (side[:, :, :0] for side in (like.keys, like.values))
    return out


def filtered(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """Keep these rows alone."""
    if not is_empty(cache):
        return keep(cache, batch_indices)
    cache.offset = cache.offset[batch_indices]
    cache.left_padding = cache.left_padding[batch_indices]


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Add another batch's rows."""
    import mlx.core as mx

    sides = (cache, other)
    written = next((side for side in sides if not is_empty(side)), None)
    if written is not None:
        for side in sides:
            if is_empty(side):
                start(side, written)
        return extend(cache, other)
    cache.offset = mx.concatenate([cache.offset, other.offset])
    cache.left_padding = mx.concatenate([cache.left_padding, other.left_padding])


def start(batch: Any, like: Any) -> None:
    """Give an empty batch keys and values of no tokens, else like those of another."""
    import mlx.core as mx

    rows = batch.offset.size
    batch.keys, batch.values = (
        mx.zeros((rows, side.shape[1], 0, side.shape[3]), side.dtype)
        for side in (like.keys, like.values)
    )


def finalized(finalize: Callable[[Any], None], cache: Any) -> None:
    """Forget the padding that was announced."""
    if not is_empty(cache):
        return finalize(cache)
    for name in _ANNOUNCED:
        if getattr(cache, name, None) is not None:
            setattr(cache, name, None)


_ANNOUNCED = ("_right_padding", "_lengths")
_BATCH = ("BatchKVCache", "BatchRotatingKVCache")
_FACTORIES: dict[str, Factory] = {
    "KVCache.state": saving(()),
    "RotatingKVCache.state": saving(()),
    **{f"{name}.state": saving(("offset", "left_padding")) for name in _BATCH},
    **{f"{name}.extract": around(extracted) for name in _BATCH},
    **{f"{name}.merge": around(merged) for name in _BATCH},
    **{f"{name}.filter": around(filtered) for name in _BATCH},
    **{f"{name}.extend": around(extended) for name in _BATCH},
    **{f"{name}.finalize": around(finalized) for name in _BATCH},
    "ArraysCache.extract": around(extracted_slots),
}

PATCH = Patch(
    id="never-written",
    summary="a cache that was never written cannot be saved, nor a row taken from its batch",
    targets=tuple(
        Target(distribution, module, name, factory)
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for name, factory in _FACTORIES.items()
    ),
    probe="mlx_patches.probes.never_written:probe",
    module=__name__,
)
