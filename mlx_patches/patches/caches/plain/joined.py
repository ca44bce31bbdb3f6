"""Keys and values turn float32 where a batch without any joins another.

Why
    A prompt that joins while others are still read has no keys yet. ``extend`` joins an empty
    array in their place, of MLX's default type: beside bfloat16 or float16 the whole batch turns
    float32, for as long as one of its rows lives. It takes twice the memory, attention is
    computed in another type, and the text may be another. mlx-lm 0.31.2 also gives that array
    the other batch's rows.
How
    The batch without keys gets keys and values of no columns in the other's type before they
    are joined; nothing is converted.
Upstream
    mlx-lm 0.32.0 makes the array in the other's type (issue 1491); mlx-vlm, which has copies of
    these classes since 0.6.4, does not yet in 0.7.10.
Retire when
    No supported release joins arrays of the default type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from .empty import is_empty, start_batch


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """The rows of ``other`` after those of ``cache``."""
    if is_empty(cache) == is_empty(other):
        return extend(cache, other)
    empty, written = (cache, other) if is_empty(cache) else (other, cache)
    start_batch(empty, written)
    joined = False
    try:
        extend(cache, other)
        joined = True
    finally:
        if empty is other or not joined:
            empty.keys = empty.values = None


PATCH = Patch(
    id="joined-dtype",
    summary="keys and values turn float32 when a prompt joins during prefill: twice the memory",
    targets=tuple(
        Target(distribution, module, f"{name}.extend", around(extended))
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for name in ("BatchKVCache", "BatchRotatingKVCache")
    ),
    probe="mlx_patches.probes.joined_dtype:probe",
    module=__name__,
)
