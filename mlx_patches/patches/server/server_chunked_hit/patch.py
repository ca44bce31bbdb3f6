"""``mlx_lm.server`` answers a Llama 4 prompt from a longer prompt's cache without its start.

Why
    The cache of a longer prompt is cut back to the prefix that it shares with the request.
    ``ChunkedKVCache`` drops tokens before its current chunk, but still reports that it is
    trimmable. Cut back to an earlier chunk, it lacks the tokens of that chunk.
How
    Such a hit is treated as a miss: the prompt is processed from its start.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    ``ChunkedKVCache`` is trimmable only as far as it has tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import PROMPT_CACHES, at


def fetch_whole_chunks(
    fetch: Callable[..., tuple[Any, Any]], prompts: Any, model: Any, tokens: Sequence[int]
) -> tuple[Any, Any]:
    """The caches of a prefix, None for a miss, and the tokens that are left to feed."""
    found, rest = fetch(prompts, model, tokens)
    held = len(tokens) - len(rest)
    if found is not None and any(lacks(cache, held) for cache in found):
        return None, tokens
    return found, rest


def lacks(cache: Any, held: int) -> bool:
    """Whether a cache of ``held`` tokens lacks tokens of the chunk that the next token reads."""
    if not hasattr(cache, "start_position"):
        return False
    begin = held // cache.chunk_size * cache.chunk_size
    return bool(cache.offset != held or cache.start_position > begin)


PATCH = Patch(
    id="server-chunked-hit",
    every_model=True,
    summary="mlx_lm.server: wrong output for Llama 4 after a prompt-cache hit",
    targets=at(PROMPT_CACHES, {"LRUPromptCache.fetch_nearest_cache": around(fetch_whole_chunks)}),
)
