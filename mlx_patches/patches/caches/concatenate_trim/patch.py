"""After a prompt cache is cut back, AFM 7 still attends to the tokens that were cut off.

Why
    ``ConcatenateKVCache.trim`` only lowers ``offset``. Keys and values stay, and the next update
    joins the new ones to them and counts all again.
How
    After a trim the cache keeps as many columns as its offset says.
Upstream
    Not fixed in mlx-lm 0.32.2 (1494 1502); mlx-vlm's own class cuts them.
Retire when
    The release cuts keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.targets import LM_CACHES


def trimmed(trim: Callable[..., Any], cache: Any, count: int) -> Any:
    """Cut the newest tokens off; returns how many."""
    done = trim(cache, count)
    if cache.keys is not None:
        cache.keys, cache.values = cut_columns(cache.keys, cache), cut_columns(cache.values, cache)
    return done


def cut_columns(columns: Any, cache: Any) -> Any:
    """The columns (rows, heads, columns, width) that a cache's offset counts."""
    return columns[..., : cache.offset, :]


PATCH = Patch(
    id="concatenate-trim",
    every_model=True,
    changes_alone=True,
    summary="a ConcatenateKVCache that was cut back still holds the tokens that were cut off",
    targets=(Target(*LM_CACHES, "ConcatenateKVCache.trim", around(trimmed)),),
)
