"""mlx-vlm: the prefix cache crashes for models with several caches per layer.

Why: The caches of a single prompt are stored as they are; if the prompt was in a batch, its row is
    extracted first. The release distinguishes the two by whether they have ``extract``. A
    ``CacheList`` always has it, and calls it on its inner caches, where those of a single prompt
    lack it. DeepSeek V3.2, GLM-5 and ZAYA1-VL crash at the first prompt that is long enough to be
    stored.
How: The caches inside a ``CacheList`` are checked as well.
Upstream: Fixed in mlx-vlm 0.6.14, in the same way.
Retire when: No supported release is older than mlx-vlm 0.6.14.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, result


def check_inner_caches(is_batch: bool, caches: Sequence[Any], /) -> bool:
    """Whether a row can be extracted from each layer's caches."""
    return is_batch and all(map(has_rows, caches))


def has_rows(cache: Any) -> bool:
    """Whether a row can be extracted from a cache, and from the caches inside it."""
    inner = getattr(cache, "caches", ())
    return callable(getattr(cache, "extract", None)) and all(map(has_rows, inner))


PATCH = Patch(
    id="vlm-prefix-cache-lists",
    formerly="prefix-cache-lists",
    severity="crash",
    targets=result("mlx_vlm.apc:_prompt_cache_is_batch_shaped", check_inner_caches),
)
