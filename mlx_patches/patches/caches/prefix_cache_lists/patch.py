"""mlx-vlm's prefix cache fails for models whose layers have several caches.

Why
    A prompt's caches are stored as they are if it was processed alone, and its row is taken out of
    them if it was in a batch. Which of both they are is seen by whether they have ``extract``. A
    ``CacheList`` always has it, and calls that of its caches, which those of a single prompt lack.
    DeepSeek V3.2, GLM-5 and ZAYA1-VL fail with the first prompt that is long enough to be stored.
How
    The caches in a ``CacheList`` are asked too.
Upstream
    Fixed in mlx-vlm 0.6.14, in the same way.
Retire when
    No supported release is older than mlx-vlm 0.6.14.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around


def ask_parts(is_batch: Callable[..., bool], caches: Sequence[Any]) -> bool:
    """Whether a row can be taken out of each layer's caches."""
    return is_batch(caches) and all(map(has_rows, caches))


def has_rows(cache: Any) -> bool:
    """Whether a row can be taken out of a cache, and out of those that it consists of."""
    parts = getattr(cache, "caches", ())
    return callable(getattr(cache, "extract", None)) and all(map(has_rows, parts))


PATCH = Patch(
    id="vlm-prefix-cache-lists",
    formerly="prefix-cache-lists",
    every_model=True,
    summary="mlx-vlm: the prefix cache crashes for models with several caches per layer",
    severity="crash",
    targets=(Target("mlx-vlm", "mlx_vlm.apc", "_prompt_cache_is_batch_shaped", around(ask_parts)),),
)
