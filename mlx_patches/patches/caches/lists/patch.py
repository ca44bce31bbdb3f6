"""The contracts of ``CacheList``, of a generator's batch, and of ``ChunkedKVCache``.

- ``CacheList`` holds the caches of one layer. Each method of a cache's contract (see ``caches``)
  calls the same method of every cache in the list. Its ``state`` has one item per cache, and its
  ``meta_state`` their class names and ``meta_state``, so ``from_state`` can rebuild them.
- A generator's batch holds one cache per layer. ``extend`` adds the rows of another batch, even if
  either one began as a single prompt and holds solo caches.
- ``ChunkedKVCache`` keeps the tokens that the next token attends to: those of its attention chunk,
  which begins at a multiple of ``chunk_size``. ``offset`` counts all tokens, ``start_position``
  those dropped in front; ``maybe_trim_front`` drops only tokens that no later token attends to.
"""

import sys
from typing import Any

from ....core.verbs import Function, Patch, add, before, define, in_caches, wrap
from ..._shared.rows import as_plain


def read_states(cache: Any) -> list[Any]:
    return [inner.state for inner in cache.caches]


def put_states(cache: Any, saved: Any) -> None:
    for inner, state in zip(cache.caches, saved, strict=True):
        inner.state = state


def read_meta_states(cache: Any) -> tuple[list[str], list[Any]]:
    names = [type(inner).__name__ for inner in cache.caches]
    return names, [inner.meta_state for inner in cache.caches]


def put_meta_states(cache: Any, saved: Any) -> None:
    for inner, meta in zip(cache.caches, saved[1], strict=True):
        inner.meta_state = meta


def restore_list(cls: Any, state: Any, meta_state: Any) -> Any:
    module = sys.modules[cls.__module__]
    saved = zip(*meta_state, state, strict=True)
    return cls(*(getattr(module, name).from_state(inner, meta) for name, meta, inner in saved))


CACHELIST_STATE = Patch(
    id="cachelist-state",
    severity="crash",
    targets=(
        *define(in_caches("CacheList.state"), lambda original: property(read_states, put_states)),
        *add(
            in_caches("CacheList.meta_state"),
            property(read_meta_states, put_meta_states),
            "CacheList.state",
        ),
        *add(in_caches("CacheList.from_state"), classmethod(restore_list), "CacheList.state"),
    ),
    probe=".probe_state:probe",
    doc="""mlx-lm and mlx-vlm: a saved prompt cache that contains a CacheList does not load.

    Why: ``CacheList.state`` is one flat list of the arrays of all its caches, without their classes
        or their numbers of arrays. ``from_state`` does not call the constructor, so the new list
        has no caches to restore.
    How: ``state`` has one item per cache, and ``meta_state`` their class names and ``meta_state``.
    Upstream: mlx-lm 0.31.0 saves both.
    Retire when: No supported release is older than mlx-lm 0.31.
    """,
)


def convert_both(batch: Any, other: Any, /) -> None:
    for one in (batch, other):
        one.cache = [convert_to_batch(layer) for layer in one.cache]


def extend_layers(extend: Function, ours: Any, theirs: Any) -> Any:
    if not ours or not theirs:
        return extend(ours, theirs)
    joined = []
    for one, other in zip(ours, theirs, strict=True):
        one, other = convert_to_batch(one), convert_to_batch(other)
        if hasattr(one, "caches"):
            one.extend(other)
            joined.append(one)
        else:
            joined += extend([one], [other])
    return joined


def convert_to_batch(layer: Any) -> Any:
    """A layer's solo cache as a batch cache of one row; batch caches are returned unchanged."""
    if hasattr(layer, "caches"):
        return type(layer)(*map(convert_to_batch, layer.caches))
    if hasattr(layer, "extend"):
        return layer
    row = as_plain(layer)
    return type(row).merge([row]) if hasattr(type(row), "merge") else layer


EXTEND_SOLO_BATCH = Patch(
    id="extend-solo-batch",
    every_model=False,
    formerly="single-joins",
    severity="crash",
    targets=(
        *before(
            "mlx_vlm.generate:Batch.extend",
            convert_both,
            fingerprint_of=("Batch.extend", "BatchGenerator._process_prompts"),
        ),
        *wrap("mlx_vlm.generate.ar:_extend_cache", extend_layers),
    ),
    probe=".probe_extend:probe",
    doc="""mlx-vlm: a batch that began with one prompt crashes when the next one joins.

    Why: ``BatchGenerator`` uses the model's own caches for a single prompt, and batch caches for
        several. ``Batch.extend`` then mixes them: a solo cache has no ``extend``, and a batch
        cache's ``extend`` reads attributes that a solo cache lacks.
    How: Solo caches become batch caches of one row before two batches are joined.
    Upstream: mlx-vlm 0.5.0 merges caches in its new generator.
    Retire when: No supported release is older than mlx-vlm 0.5.0.
    """,
)


def trim_front(trim: Function, cache: Any) -> None:
    """Drop only tokens in front that no later token attends to."""
    if cache.keys is not None and cuts_chunk(cache):
        tokens = cache.offset - cache.start_position
        if tokens <= cache.chunk_size:
            return
        cache.keys, cache.values = (side[:, :, :tokens] for side in (cache.keys, cache.values))
    trim(cache)


def cuts_chunk(cache: Any) -> bool:
    """Whether the release's trim would drop tokens of the next token's attention chunk."""
    first_kept = cache.start_position + cache.keys.shape[2] - cache.chunk_size
    return bool(first_kept > cache.offset // cache.chunk_size * cache.chunk_size)


CHUNKED_FRONT = Patch(
    id="chunked-front",
    # Up to 0.6.2 mlx-vlm imports the class of mlx-lm.
    targets=wrap(in_caches("ChunkedKVCache.maybe_trim_front"), trim_front),
    probe=".probe_chunked:probe",
    doc="""Llama 4 forgets the start of an attention chunk during prefill: wrong output.

    Why: ``maybe_trim_front`` keeps the last ``chunk_size`` columns of the buffer. Columns at the
        end may still be unwritten; for each of them one token too many is dropped in front,
        possibly of the attention chunk that the next token attends to. At worst more tokens are
        dropped than the cache holds.
    How: If a token of that chunk would be dropped, the unwritten columns are cut off first. The
        release's trim then only drops tokens older than the last ``chunk_size``.
    Upstream: mlx-lm 0.32.0 and mlx-vlm 0.7.0 count tokens instead of columns.
    Retire when: No supported release is older than these.
    """,
)
