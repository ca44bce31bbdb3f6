"""mlx-lm and mlx-vlm silently ignore max_kv_size for models that build their own caches.

Why: ``make_prompt_cache`` calls the model's ``make_cache`` if there is one, which has no parameter
    for the size. For Gemma, GPT-OSS, Qwen3-Next and every hybrid, ``max_kv_size`` limits nothing:
    the caches of full attention layers grow until the process runs out of memory.
How: The patch logs one warning per model class. It leaves the caches unchanged, because the model's
    masks and shared layers depend on them.
Upstream: Documented in mlx-lm 0.32.2, but still silent. mlx-vlm #1995, vllm-mlx #688.
Retire when: ``make_cache`` takes the size, or the release warns that the size is ignored.
"""

import logging
from functools import cache
from typing import Any

from ....core.verbs import Patch, everywhere, result

logger = logging.getLogger("mlx_patches")


def is_limited(max_kv_size: Any) -> bool:
    return max_kv_size is not None


def warn_if_unbounded(caches: list[Any], model: Any, /) -> list[Any]:
    """The model's caches, one per layer; warns if they ignore ``max_kv_size``."""
    if count := sum(map(grows, caches)):
        warn(f"{type(model).__module__}.{type(model).__qualname__}", count, len(caches))
    return caches


def grows(layer: Any) -> bool:
    parts = getattr(layer, "caches", None)
    if parts is not None:
        return any(map(grows, parts))
    if getattr(layer, "max_size", None) or getattr(layer, "chunk_size", None):
        return False
    return hasattr(layer, "keys")


@cache
def warn(model: str, count: int, layers: int) -> None:
    logger.warning(
        "mlx_patches: %s makes its own caches: max_kv_size is ignored; %s of %s layers grow with"
        " every token",
        model,
        count,
        layers,
    )


PATCH = Patch(
    id="max-kv-size-ignored",
    severity="feature",
    every_model=True,
    targets=result(
        everywhere("models.cache:make_prompt_cache"), warn_if_unbounded, when=is_limited
    ),
)
