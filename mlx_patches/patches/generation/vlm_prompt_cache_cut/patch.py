"""mlx_vlm.stream_generate: wrong output in the next turn once a sliding window is full.

Why: ``stream_generate`` cuts the previous turn's caches to the common prefix: it keeps the first
    columns of keys and values, and sets the offset. This is right only for a plain cache. A
    rotating cache has its window in another order and keeps a write position; a recurrent cache is
    not cut at all. The text continues from a wrong context, or the call raises.
How: If any cache cannot be cut back to the prefix, the prefix is reported as empty, and the prompt
    is processed from its start. If all caches can be cut, the patch trims them with their own
    method before the release cuts them. mlx-vlm 0.6.0 to 0.6.9 has the class twice: the public one
    is in ``common``, the one beside ``stream_generate`` is used by nobody.
Upstream: Fixed in mlx-vlm 0.6.9 (#1715, commit c503fa7b).
Retire when: No supported release is older than mlx-vlm 0.6.9.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ....core.verbs import Patch, wrap

_FIND = "PromptCacheState.find_prefix_length"


def find_cuttable_prefix(find: Callable[..., int], state: Any, new_ids: Sequence[int]) -> int:
    """The length of the prompt's prefix in the last turn's caches, which are cut to it."""
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
    """Whether a cache holds every token from the first, as arrays, and can be trimmed."""
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
    targets=(
        *wrap(
            [f"mlx_vlm.{module}:{_FIND}" for module in ("generate", "generate.dispatch")],
            find_cuttable_prefix,
            fingerprint_of=("stream_generate",),
        ),
        *wrap(f"mlx_vlm.generate.common:{_FIND}", find_cuttable_prefix, supports=True),
    ),
)
