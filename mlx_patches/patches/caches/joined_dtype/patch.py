"""mlx-lm and mlx-vlm: a prompt that joins during prefill makes the cache float32, twice as large.

Why: A prompt that joins while others are still being prefilled has no keys yet. ``extend`` joins an
    empty array of MLX's default dtype instead: joined with bfloat16 or float16, the whole batch
    turns float32 until its last row ends. It takes twice the memory, attention is computed in
    float32, and the output may differ. mlx-lm 0.31.2 also gives that array the other batch's number
    of rows.
How: The empty batch gets zero columns in the other's dtype before the two are joined; nothing is
    converted.
Upstream: mlx-lm 0.32.0 makes the array in the other's dtype (issue 1491). mlx-vlm, which has its
    own copies of these classes since 0.6.4, is not fixed in 0.7.10.
Retire when: No supported release joins arrays of the default dtype.
"""

from collections.abc import Callable
from typing import Any

from ....core.verbs import Patch, in_caches, wrap
from ..._shared.rows import is_empty, start_batch


def joins_empty(cache: Any, other: Any, /) -> bool:
    return (cache.keys is None) is not (other.keys is None)


def extend_in_own_dtype(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
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
    severity="memory",
    every_model=True,
    targets=wrap(
        in_caches("BatchKVCache.extend BatchRotatingKVCache.extend"),
        extend_in_own_dtype,
        when=joins_empty,
    ),
)
