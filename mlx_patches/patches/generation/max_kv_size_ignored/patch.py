"""``max_kv_size`` is silently ignored where a model makes its own caches.

Why
    ``make_prompt_cache`` calls the model's ``make_cache`` if there is one, and that takes no
    size. For Gemma, GPT-OSS, Qwen3-Next and every hybrid, ``max_kv_size`` limits nothing: the
    caches of full attention layers grow until the process ends.
How
    The patch logs one warning a model class. It leaves the caches unchanged, because the model's
    masks and shared layers depend on them.
Upstream
    Documented in mlx-lm 0.32.2, but still silent. mlx-vlm #1995, vllm-mlx #688.
Retire when
    ``make_cache`` takes the size, or the release warns that the size is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from ....core.patch import Patch, around
from ..._shared.targets import CACHES, at

logger = logging.getLogger("mlx_patches")


def make_bounded_caches(
    make: Callable[..., list[Any]],
    model: Any,
    max_kv_size: int | None = None,
    *args: Any,
    **kwargs: Any,
) -> list[Any]:
    """A model's caches, one a layer; warns if they ignore ``max_kv_size``."""
    caches = make(model, max_kv_size, *args, **kwargs)
    if max_kv_size is not None:
        count = sum(map(grows, caches))
        if count:
            warn(f"{type(model).__module__}.{type(model).__qualname__}", count, len(caches))
    return caches


def grows(layer: Any) -> bool:
    """Whether a layer's cache grows with every token."""
    parts = getattr(layer, "caches", None)
    if parts is not None:
        return any(map(grows, parts))
    if getattr(layer, "max_size", None) or getattr(layer, "chunk_size", None):
        return False
    return hasattr(layer, "keys")


@cache
def warn(model: str, count: int, layers: int) -> None:
    """Log a warning, once a model class."""
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
    summary="mlx-lm and mlx-vlm silently ignore max_kv_size for models that build their own caches",
    targets=at(CACHES, {"make_prompt_cache": around(make_bounded_caches)}),
)
