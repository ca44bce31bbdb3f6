"""vllm-mlx: the prefix cache keeps whole batches in memory until it runs out.

Why: The cache stores views of the running batch's arrays: an entry of one request keeps the keys
    and values of all requests alive, with the graph that computes them. Recurrent states are stored
    as the objects that the batch continues to use, and count as zero bytes, so nothing is evicted.
How: When an entry is stored, its arrays are replaced by evaluated copies of its own rows, and their
    size is counted; the release's own method evicts the oldest entries.
Upstream: vllm-mlx 0.5.0 (vllm-mlx 641 642).
Retire when: vllm-mlx below 0.5.0 is no longer supported.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from ....core.verbs import Patch, mx, wrap


def store_copies(
    store: Callable[..., Any], prefixes: Any, tokens: Sequence[int], *args: Any, **kwargs: Any
) -> Any:
    """Store the caches of these tokens; returns whether they are in the prefix cache now."""
    key = tuple(tokens)
    with getattr(prefixes, "_memory_lock", None) or nullcontext():
        before = prefixes._entries.get(key)
        kept = store(prefixes, tokens, *args, **kwargs)
        entry = prefixes._entries.get(key)
        if not kept or entry is None or entry is before:
            return kept
        if not any(True for _ in find_arrays(entry.cache)):
            return kept  # it shares no arrays, and the release's count is right
        entry.cache = detach_caches(entry.cache)
        count_bytes(prefixes, entry)
        return key in prefixes._entries


def detach_caches(layers: Sequence[Any]) -> list[Any]:
    """Evaluated copies of caches that share no memory with other arrays."""
    copies = [copy_value(layer) for layer in layers]
    evaluate(copies)
    return copies


def evaluate(layers: Sequence[Any]) -> None:
    mx.eval(list(find_arrays(layers)))


def count_bytes(prefixes: Any, entry: Any) -> None:
    """Count an entry's real size, and evict the oldest entries until all fit in memory."""
    size = sum(array.nbytes for array in find_arrays(entry.cache))
    prefixes._current_memory += size - entry.memory_bytes
    entry.memory_bytes = size
    while prefixes._current_memory > prefixes._max_memory and prefixes._entries:
        prefixes._evict_lru()
    prefixes._stats.current_memory_bytes = prefixes._current_memory


def copy_value(value: Any) -> Any:
    """A copy of a cache or of a part of it; its arrays are new, not yet evaluated."""
    if isinstance(value, mx.array):
        # ``value + 0`` would turn -0.0 into 0.0; ``mx.contiguous`` may return a view.
        return (value * 1).astype(value.dtype)
    if isinstance(value, dict):
        return type(value)((name, copy_value(part)) for name, part in value.items())
    if isinstance(value, (list, tuple)):
        parts = [copy_value(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if not any(True for _ in find_arrays(value)):
        return value
    taken = copy.copy(value)
    for name, part in list_attributes(value):
        setattr(taken, name, copy_value(part))
    return taken


def find_arrays(value: Any) -> Iterator[Any]:
    if isinstance(value, mx.array):
        yield value
        return
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        value = [part for _, part in list_attributes(value)]
    for part in value:
        yield from find_arrays(part)


def list_attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a cache, as (name, value); none for any other object."""
    is_cache = any(hasattr(value, name) for name in ("keys", "state", "caches"))
    if not is_cache or isinstance(value, type):
        return
    yield from vars(value).items() if hasattr(value, "__dict__") else ()
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)


PATCH = Patch(
    id="vllm-stored-prefix",
    targets=wrap("vllm_mlx.memory_cache:MemoryAwarePrefixCache.store", store_copies),
    probe=".probe_stored:probe",
)
