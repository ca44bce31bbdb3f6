"""mlx-lm BatchGenerator.extract_cache: a host's cache key grows, and eviction raises.

Why: ``BatchGenerator.extract_cache`` returns the batch's own list of tokens, to which each later
    step appends. A host that keeps the cache under these tokens gets a key of more tokens than the
    cache holds, and evicting the entry raises KeyError. The caches of a request that waits are the
    batch's own as well.
How: The caller gets a copy of the list, and of the caches of a waiting request.
Upstream: Not fixed in mlx-lm 0.32.2. Releases up to 0.31.1 return no tokens.
Retire when: ``extract_cache`` returns objects that the batch does not change.
"""

import copy
from typing import Any

from ....core.verbs import Patch, result


def copy_entries(entries: Any, generator: Any, /) -> dict[int, tuple[Any, list[int]]]:
    """The extracted caches and tokens, which the batch does not change."""
    waiting = {id(sequence[3]) for sequence in generator._unprocessed_sequences}
    return {
        uid: (copy.deepcopy(cache) if id(cache) in waiting else cache, copy_tokens(tokens))
        for uid, (cache, tokens) in entries.items()
    }


def copy_tokens(tokens: list[int]) -> list[int]:
    return list(tokens)


PATCH = Patch(
    id="extracted-tokens",
    severity="crash",
    targets=result("mlx_lm.generate:BatchGenerator.extract_cache", copy_entries),
)
