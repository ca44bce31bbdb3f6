"""A hit in mlx-vlm's prefix cache loses the prefix in the layers of Llama 4 that have chunks.

Why
    The layers' caches of a hit are joined as if they were plain ones. ``ChunkedKVCache`` has no
    length of its own, so it counts as empty: these layers begin at position 0 and the others
    behind the prefix, and all requests of the batch fail.
How
    Each of these caches is joined as a plain one of its length. Tokens that it has dropped are
    zeros: no later token attends to them.
Upstream
    mlx-vlm 0.5.0 to 0.7.10, not fixed.
Retire when
    ``ChunkedKVCache.size`` is the number of its tokens, and a join keeps their positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.rows import as_plain


def join_as_plain(join: Callable[..., Any], rows: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
    """Join one layer's caches of several rows; see the release's function."""
    return join([as_plain(row) for row in rows], *args, **kwargs)


PATCH = Patch(
    id="vlm-prefix-chunks",
    formerly="prefix-chunks",
    every_model=True,
    summary="mlx-vlm: Llama 4 loses its prefix after a prefix-cache hit, and crashes",
    severity="crash",
    targets=(
        Target("mlx-vlm", "mlx_vlm.apc", "_merge_exact_cache_entries", around(join_as_plain)),
    ),
)
