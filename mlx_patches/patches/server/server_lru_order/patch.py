"""mlx_lm.server: a full prompt cache evicts the conversation that was just continued.

Why: The cache evicts its oldest entries, but a look-up does not make an entry newer: a conversation
    loses its caches while others that nobody continues stay.
How: The entry that a look-up uses becomes the newest of its kind.
Upstream: mlx-lm 1496; not fixed in mlx-lm 0.32.2. Up to mlx-lm 0.30 most look-ups remove their
    entry.
Retire when: ``fetch_nearest_cache`` makes the entry that it uses the newest.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ....core.verbs import Patch, wrap
from ..._shared.targets import PROMPT_CACHE_FETCH


def fetch_and_renew(
    fetch: Callable[..., tuple[Any, Any]], prompts: Any, model: Any, tokens: Sequence[int]
) -> tuple[Any, Any]:
    """The result of a look-up, whose entry becomes the newest."""
    search = prompts._trie.search if hasattr(prompts, "_trie") else prompts._search
    matches = search(model, tokens)
    found, rest = fetch(prompts, model, tokens)
    if found is not None:
        renew(prompts, (model, find_used(matches, len(tokens) - len(rest))))
    return found, rest


def find_used(matches: Any, held: int) -> Any:
    """The key of the entry whose first ``held`` tokens were used."""
    if matches.exact is not None:
        return matches.exact
    shorter = matches.shorter
    return shorter if shorter is not None and len(shorter) == held else matches.longer


def renew(prompts: Any, key: tuple[Any, Any]) -> None:
    for order in find_orders(prompts._lru):
        if key in order:
            order.remove(key)
            order.append(key)


def find_orders(lru: Any) -> Iterable[deque[Any]]:
    """The orders of the cache, one for each kind of entry."""
    if isinstance(lru, deque):
        return [lru]
    return lru._lrus.values() if hasattr(lru, "_lrus") else [lru._lru, lru._lru_checkpoints]


PATCH = Patch(
    id="server-lru-order",
    severity="feature",
    every_model=True,
    targets=wrap(
        PROMPT_CACHE_FETCH,
        fetch_and_renew,
        fingerprint_of=("LRUPromptCache.fetch_nearest_cache", "LRUPromptCache.insert_cache"),
    ),
)
