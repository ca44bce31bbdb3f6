"""A prompt that ``mlx_lm.server`` has in its cache whole stops the server for good.

Why
    The prompt cache hands out the caches of a prompt that it knows to the last token, and no
    token that is left to feed. Nothing says what comes next, so the generation thread dies of
    the empty prompt, and no later request is answered.
How
    The last token is always left to feed: it is taken back out of the caches. Caches that
    cannot give a token back are left, and those of a shorter prefix are taken, or none.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    ``fetch_nearest_cache`` never leaves nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around

CACHES = "mlx_lm.models.cache"


def fetched(
    fetch: Callable[..., tuple[Any, Any]], prompts: Any, model: Any, tokens: Sequence[int]
) -> tuple[Any, Any]:
    """The caches of a prefix, None where there is none, and the tokens that are left to feed."""
    found, rest = fetch(prompts, model, tokens)
    if found is None or len(rest) or not len(tokens) or not all(map(is_cache, found)):
        return found, rest
    return one_back(fetch, prompts, model, tokens, found)


def is_cache(layer: Any) -> bool:
    """Whether it is a cache at all: what else is kept here is not for us to cut."""
    return hasattr(layer, "is_trimmable")


def one_back(
    fetch: Callable[..., tuple[Any, Any]],
    prompts: Any,
    model: Any,
    tokens: Sequence[int],
    found: Any,
) -> tuple[Any, Any]:
    """What a fetch returns that found the caches of all the tokens, less the last one."""
    caches = sys.modules[CACHES]
    if caches.can_trim_prompt_cache(found):
        caches.trim_prompt_cache(found, 1)
        return found, tokens[-1:]
    found, rest = fetch(prompts, model, tokens[:-1])
    return found, [*rest, tokens[-1]]


PATCH = Patch(
    id="server-prefix-hit",
    summary="a prompt that mlx_lm.server has cached whole stops it for good",
    targets=tuple(
        Target("mlx-lm", module, "LRUPromptCache.fetch_nearest_cache", around(fetched))
        for module in ("mlx_lm.server", CACHES)
    ),
    probe="mlx_patches.probes.server_prefix_hit:probe",
    module=__name__,
)
