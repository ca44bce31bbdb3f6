"""mlx_vlm.stream_generate with a drafter: wrong output in the next turn over kept caches.

Why: ``PromptCacheState`` keeps a turn's tokens with its caches. With a drafter, the caches lack the
    answer's last token unless it was drafted, and the next turn continues after it all the same.
How: The common prefix is at most as long as the caches.
Upstream: Not fixed in mlx-vlm 0.7.10. Before mlx-vlm 0.7, the last block's rejected drafts also
    stay in the caches; this is not repaired.
Retire when: The kept tokens are those in the caches.
"""

from typing import Any

from ....core.verbs import Patch, result

_MODULES = ("generate", "generate.common")  # the latter from 0.6 on


def limit_prefix(length: int, state: Any, /) -> int:
    """The length of the common prefix, of which the caches may lack the end."""
    return min(length, count_tokens(state.cache) or length)


def count_tokens(caches: Any) -> int:
    """The number of tokens in the caches; 0 if none of them counts."""
    offsets = [getattr(cache, "offset", 0) for cache in caches or ()]
    return max((one for one in offsets if isinstance(one, int)), default=0)


PATCH = Patch(
    id="vlm-draft-turns",
    every_model=True,
    targets=result(
        [f"mlx_vlm.{one}:PromptCacheState.find_prefix_length" for one in _MODULES], limit_prefix
    ),
)
