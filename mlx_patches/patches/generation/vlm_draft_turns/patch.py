"""mlx_vlm.stream_generate with a drafter: wrong output in the next turn over kept caches.

Why: ``PromptCacheState`` keeps a turn's tokens with its caches. With a drafter, the caches lack the
    answer's last token unless it was drafted, but the next turn continues after it. Before mlx-vlm
    0.7, the last block's rejected drafts also stay in the caches.
How: The common prefix is at most as long as the caches. When the rounds of drafts end, for any
    reason, rejected drafts are trimmed from the caches. Caches that cannot be trimmed, such as
    those of recurrent models, are not used again.
Upstream: mlx-vlm 0.7.0 forgets rejected drafts before it yields tokens. The caches' missing token
    is not fixed in mlx-vlm 0.7.10.
Retire when: The kept tokens are those in the caches.
"""

from collections.abc import Callable, Iterator
from typing import Any

from ....core.handed import hand_over
from ....core.verbs import Patch, result, wrap

_MODULES = ("generate", "generate.common")  # the latter from 0.6 on
_ROUNDS = (
    *("mlx_vlm.generate:_dflash_rounds", "mlx_vlm.generate:_mtp_rounds"),  # before 0.6
    *(f"mlx_vlm.speculative.{one}:_{one}_rounds" for one in ("dflash", "eagle3", "mtp")),
)


def limit_prefix(length: int, state: Any, /) -> int:
    """The length of the common prefix, of which the caches may lack the end."""
    if any(hasattr(cache, "_mlx_patches_rejected") for cache in state.cache or ()):
        return 0
    return min(length, count_tokens(state.cache) or length)


def count_tokens(caches: Any) -> int:
    """The number of tokens in the caches; 0 if none of them counts."""
    offsets = [getattr(cache, "offset", 0) for cache in caches or ()]
    return max((one for one in offsets if isinstance(one, int)), default=0)


def drop_rejected(
    rounds: Callable[..., Iterator[Any]],
    model: Any,
    draft_model: Any,
    prompt_cache: list[Any],
    *args: Any,
    **options: Any,
) -> Iterator[Any]:
    """The tokens of rounds that leave no rejected drafts in the caches."""
    start = count_tokens(prompt_cache)
    steps = rounds(model, draft_model, prompt_cache, *args, **options)
    cut = hand_over("vlm-draft-turns", lambda _, *args: cut_caches(*args), lambda *_: False)
    return finish(steps, lambda fed: cut(prompt_cache, start + fed))


def finish(steps: Any, cut: Callable[[int], Any]) -> Iterator[Any]:
    """Yield the tokens, then call ``cut`` with the number of tokens that the caches need.

    These are as many as were yielded: the token before the rounds is fed, the last one is not.
    """
    count = 0
    try:
        for step in steps:
            count += 1
            yield step
    finally:
        steps.close()
        cut(count)


def cut_caches(caches: Any, length: int) -> bool:
    """Trim caches to a length, or mark them as unusable."""
    excess = count_tokens(caches) - length
    if excess > 0 and all(cache.is_trimmable() for cache in caches):
        for cache in caches:
            cache.trim(excess)
    elif excess > 0:
        caches[0]._mlx_patches_rejected = True
    return True


PATCH = Patch(
    id="vlm-draft-turns",
    targets=(
        *result(
            [f"mlx_vlm.{one}:PromptCacheState.find_prefix_length" for one in _MODULES], limit_prefix
        ),
        *wrap(_ROUNDS, drop_rejected),
    ),
)
