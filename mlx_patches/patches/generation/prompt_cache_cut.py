"""A conversation that shares a prefix with the last turn goes on with a broken window.

Why
    ``stream_generate`` cuts the last turn's caches to the common prefix: the first columns of
    keys and values, and an offset. That is right for a plain cache alone. A rotating cache has
    its window in another order, and remembers where it writes; a recurrent one is not cut at
    all. The text goes on from a past that never was, or raises.
How
    The prefix is shortened to nothing where a cache cannot be cut back to it, and the prompt is
    read anew. Where all caches can be cut, each does it itself, before the release looks.
Upstream
    Fixed in mlx-vlm 0.6.9 (#1715, commit c503fa7b).
Retire when
    No supported release is older than mlx-vlm 0.6.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def found(find: Callable[..., int], state: Any, new_ids: Sequence[int]) -> int:
    """How many tokens of a prompt the caches of the last turn have, and hold alone from now on."""
    length = find(state, new_ids)
    caches = state.cache
    if caches is None or not 0 < length < len(new_ids):
        return length
    excess = max((int(getattr(cache, "offset", 0)) for cache in caches), default=0) - length
    if excess <= 0:
        return length
    if not all(is_whole(cache) for cache in caches):
        return 0
    for cache in caches:
        cache.trim(excess)
    state.token_ids = state.token_ids[:length]
    return length


def is_whole(cache: Any) -> bool:
    """Whether a cache holds every token from the first, as arrays, and takes the last ones back."""
    parts = getattr(cache, "caches", None)
    if parts is not None:
        return all(map(is_whole, parts))
    if isinstance(getattr(cache, "keys", None), (list, tuple)):  # quantized: it cannot be sliced
        return False
    if getattr(cache, "start_position", 0):
        return False
    is_trimmable = getattr(cache, "is_trimmable", None)
    return is_trimmable is not None and bool(is_trimmable())


PATCH = Patch(
    id="vlm-prompt-cache-cut",
    summary="stream_generate cuts a rotating cache at a prefix: the next turn has a broken window",
    targets=tuple(
        Target(
            "mlx-vlm",
            module,
            "PromptCacheState.find_prefix_length",
            around(found),
            body=("stream_generate",),
        )
        for module in ("mlx_vlm.generate", "mlx_vlm.generate.dispatch")
    ),
    probe="mlx_patches.probes.prompt_cache_cut:probe",
    module=__name__,
)
