"""mlx_lm.server hangs for good after a prompt that its cache covers completely.

Why: For a prompt that is cached to its last token, the prompt cache returns no tokens to feed. The
    generation thread raises for the empty prompt and ends, and later requests hang.
How: The last token is always left to feed: it is trimmed from the caches. If the caches cannot be
    trimmed, those of a shorter prefix are used, or none.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``fetch_nearest_cache`` always leaves a token to feed.
"""

import sys
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, wrap
from ..._shared.targets import PROMPT_CACHE_FETCH


def fetch_and_leave_one(
    fetch: Function, prompts: Any, model: Any, tokens: Sequence[int]
) -> tuple[Any, Any]:
    """The caches of a prefix, None for a miss, and the tokens that are left, at least one."""
    found, rest = fetch(prompts, model, tokens)
    if found is None or len(rest) or not len(tokens):
        return found, rest
    if not all(hasattr(layer, "is_trimmable") for layer in found):  # no caches
        return found, rest
    return leave_last_token(fetch, prompts, model, tokens, found)


def leave_last_token(
    fetch: Function, prompts: Any, model: Any, tokens: Sequence[int], found: Any
) -> tuple[Any, Any]:
    """The result of a fetch whose caches hold all tokens, changed to leave the last one."""
    caches = sys.modules["mlx_lm.models.cache"]
    if caches.can_trim_prompt_cache(found):
        caches.trim_prompt_cache(found, 1)
        return found, tokens[-1:]
    found, rest = fetch(prompts, model, tokens[:-1])
    return found, [*rest, tokens[-1]]


PATCH = Patch(
    id="server-prefix-hit",
    severity="crash",
    every_model=True,
    targets=wrap(PROMPT_CACHE_FETCH, fetch_and_leave_one),
)
