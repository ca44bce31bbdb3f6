"""Llama 4 forgets the beginning of a chunk that it is still reading.

Why
    ``maybe_trim_front`` keeps the last ``chunk_size`` places of the buffer. Its end is room that
    was not written yet, so as many tokens too many are dropped in front, where they may belong
    to the chunk that the next token attends to; at worst more than there are.
How
    Where the next token would miss some, the room at the end is given up first. What is dropped
    is then what is beyond the last ``chunk_size`` tokens, if anything.
Upstream
    mlx-lm 0.32.0 counts tokens, not places.
Retire when
    No supported release is older than mlx-lm 0.32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def trimmed(trim_front: Callable[[Any], None], cache: Any) -> None:
    """Drop tokens in front that no token will attend to any more."""
    if cache.keys is not None and misses(cache):
        tokens = cache.offset - cache.start_position
        if tokens <= cache.chunk_size:
            return
        cache.keys, cache.values = (side[:, :, :tokens] for side in (cache.keys, cache.values))
    trim_front(cache)


def misses(cache: Any) -> bool:
    """Whether the next token's chunk would begin before what is left."""
    left_from = cache.start_position + cache.keys.shape[2] - cache.chunk_size
    return bool(left_from > cache.offset // cache.chunk_size * cache.chunk_size)


PATCH = Patch(
    id="chunked-front",
    summary="Llama 4 forgets the beginning of a chunk that it is still reading",
    targets=(
        Target("mlx-lm", "mlx_lm.models.cache", "ChunkedKVCache.maybe_trim_front", around(trimmed)),
    ),
    probe="mlx_patches.probes.chunked_front:probe",
    module=__name__,
)
