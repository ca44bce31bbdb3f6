"""mlx-vlm: Llama 4 loses its prefix after a prefix-cache hit, and crashes.

Why: The caches of the hits are joined as if they were plain ones. ``ChunkedKVCache`` does not
    implement ``size``, so it counts as empty: its layers start at position 0 and the others after
    the prefix, and every request of the batch fails.
How: Each chunked cache is joined as a plain one of the same length. Zeros stand for the tokens that
    it dropped, which no later token attends to.
Upstream: Not fixed in mlx-vlm 0.5.0 to 0.7.10.
Retire when: ``ChunkedKVCache.size`` counts its tokens, and a join keeps their positions.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, argument
from ..._shared.rows import as_plain


def convert_to_plain(entries: Sequence[Any]) -> list[Any]:
    """One layer's caches of several rows, chunked ones as plain caches."""
    return [as_plain(row) for row in entries]


PATCH = Patch(
    id="vlm-prefix-chunks",
    formerly="prefix-chunks",
    severity="crash",
    targets=argument("mlx_vlm.apc:_merge_exact_cache_entries", "entries", convert_to_plain),
)
