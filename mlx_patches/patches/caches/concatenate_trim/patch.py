"""mlx-lm: AFM 7 still attends to tokens that were trimmed from its prompt cache.

Why: ``ConcatenateKVCache.trim`` only lowers ``offset``. Keys and values stay, and the next update
    appends to them and counts all columns again.
How: After a trim the cache keeps only the columns that its offset counts.
Upstream: Not fixed in mlx-lm 0.32.2 (1494 1502); mlx-vlm's own class cuts them.
Retire when: The release cuts keys and values.
"""

from typing import Any

from ....core.verbs import Patch, after


def drop_trimmed_columns(cache: Any, /) -> None:
    """Cut keys and values (rows, heads, columns, width) to the columns that the offset counts."""
    if cache.keys is not None:
        cache.keys = cache.keys[..., : cache.offset, :]
        cache.values = cache.values[..., : cache.offset, :]


PATCH = Patch(
    id="concatenate-trim",
    every_model=True,
    changes_solo=True,
    targets=after("mlx_lm.models.cache:ConcatenateKVCache.trim", drop_trimmed_columns),
)
