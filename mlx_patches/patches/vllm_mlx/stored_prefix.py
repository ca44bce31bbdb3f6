"""vllm-mlx's prefix cache keeps whole batches alive, until the process is out of memory.

Why
    What it stores are views of the running batch's arrays: an entry of one request holds the keys
    and values of all, and whatever graph they came from. Recurrent states are stored as the
    objects that the batch goes on with, and count as zero bytes, so that nothing is evicted.
How
    An entry gets evaluated copies of its own part as soon as it is stored, and counts what they
    take; what no longer fits is evicted as the release does.
Upstream
    vllm-mlx 0.5.0 (vllm-mlx 641 642).
Retire when
    vllm-mlx below 0.5.0 is no longer supported.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ...core.patch import Patch, Target, around


def stored(
    store: Callable[..., Any], prefixes: Any, tokens: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """Whether the caches of these tokens are kept."""
    key = tuple(tokens)
    with getattr(prefixes, "_memory_lock", None) or nullcontext():
        before = prefixes._entries.get(key)
        kept = store(prefixes, tokens, *args, **kwargs)
        entry = prefixes._entries.get(key)
        if not kept or entry is None or entry is before:
            return kept
        entry.cache = detached(entry.cache)
        count(prefixes, entry)
        return key in prefixes._entries


def detached(layers: Sequence[Any]) -> list[Any]:
    """Evaluated copies of caches, which share nothing with anything else."""
    copies = [copied(layer) for layer in layers]
    evaluate(copies)
    return copies


def evaluate(layers: Sequence[Any]) -> None:
    """Evaluate every array of some caches."""
    import mlx.core as mx

    mx.eval([array for layer in layers for array in arrays_of(layer)])


def count(prefixes: Any, entry: Any) -> None:
    """Take an entry for as large as it is, and evict the oldest while there is too much."""
    size = sum(array.nbytes for layer in entry.cache for array in arrays_of(layer))
    prefixes._current_memory += size - entry.memory_bytes
    entry.memory_bytes = size
    while prefixes._current_memory > prefixes._max_memory and prefixes._entries:
        prefixes._evict_lru()
    prefixes._stats.current_memory_bytes = prefixes._current_memory


def copied(value: Any) -> Any:
    """A copy of a cache or of a part of it; its arrays are new ones, not yet evaluated."""
    import mlx.core as mx

    if isinstance(value, mx.array):
        # Not plus zero, which makes 0.0 of -0.0; ``mx.contiguous`` may leave a view.
        return (value * 1).astype(value.dtype)
    if isinstance(value, dict):
        return type(value)((name, copied(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        parts = [copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if not any(True for _ in arrays_of(value)):
        return value
    taken = copy.copy(value)
    for name, part in attributes_of(value):
        setattr(taken, name, copied(part))
    return taken


def arrays_of(value: Any) -> Iterator[Any]:
    """Every array of a cache."""
    import mlx.core as mx

    if isinstance(value, mx.array):
        yield value
        return
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif not isinstance(value, type):
        parts = [part for _, part in attributes_of(value)]
    for part in parts:
        yield from arrays_of(part)


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object of caches holds under which name; nothing of other kinds of objects."""
    if not any(hasattr(value, name) for name in ("keys", "state", "caches")):
        return
    yield from vars(value).items() if hasattr(value, "__dict__") else ()
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)


PATCH = Patch(
    id="vllm-stored-prefix",
    summary="vllm-mlx's prefix cache keeps whole batches alive, until memory is out",
    targets=(
        Target("vllm-mlx", "vllm_mlx.memory_cache", "MemoryAwarePrefixCache.store", around(stored)),
    ),
    probe="mlx_patches.probes.stored_prefix:probe",
    module=__name__,
)
