"""mlx_lm.server: wrong output for Llama 4 after a prompt-cache hit.

Why: The cache of a longer prompt is cut back to the prefix that it shares with the request.
    ``ChunkedKVCache`` drops the tokens before its current chunk, but still reports that it is
    trimmable. Cut back to an earlier chunk, it lacks that chunk's tokens.
How: Such a hit is treated as a miss: the whole prompt is processed.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``ChunkedKVCache`` is trimmable only as far as it has tokens.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, result
from ..._shared.targets import PROMPT_CACHE_FETCH


def drop_incomplete_hit(hit: tuple[Any, Any], tokens: Sequence[int]) -> tuple[Any, Any]:
    """The caches of a prefix and the tokens left to feed; a miss if the caches lack tokens."""
    found, rest = hit
    held = len(tokens) - len(rest)
    if found is not None and any(is_incomplete(cache, held) for cache in found):
        return None, tokens
    return hit


def is_incomplete(cache: Any, held: int) -> bool:
    """Whether a cache of ``held`` tokens lacks tokens of the chunk that the next token reads."""
    if not hasattr(cache, "start_position"):
        return False
    begin = held // cache.chunk_size * cache.chunk_size
    return bool(cache.offset != held or cache.start_position > begin)


PATCH = Patch(
    id="server-chunked-hit",
    every_model=True,
    targets=result(PROMPT_CACHE_FETCH, drop_incomplete_hit),
)
