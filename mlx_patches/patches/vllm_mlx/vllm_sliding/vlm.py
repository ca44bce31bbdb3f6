"""vllm-mlx refuses a batch of a multimodal model whose first layer is a sliding-window layer.

Why
    Before it merges the rows' caches, the multimodal batch generator requires the first layer's
    cache to be a ``KVCache``, to exclude quantized ones. ``RotatingKVCache`` is not a subclass of
    it: every request to a Gemma model fails. A rotating cache that holds more tokens than its
    window could not be merged either.
How
    After a row's forward pass, its rotating caches are cut to their windows, and get a class that
    is a subclass of ``KVCache`` too, with the methods of ``RotatingKVCache``.
Upstream
    vllm-mlx 0.2.8 accepts both classes.
Retire when
    vllm-mlx below 0.2.8 is no longer supported.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.rows import cut_to_window


def encoded(encode: Any, generator: Any, request: Any, cache: Any = None) -> Any:
    """A row's logits; its caches are changed so that they can be merged."""
    logits = encode(generator, request, cache=cache)
    if cache:
        cache[:] = as_kv_caches(cache)
    return logits


def as_kv_caches(caches: Sequence[Any]) -> list[Any]:
    """The caches as the generator accepts them."""
    from mlx_lm.models.cache import RotatingKVCache

    welcomed = []
    for layer in caches:
        if type(layer) is RotatingKVCache:
            layer = cut_to_window(layer)
            layer.__class__ = mergeable_class()
        welcomed.append(layer)
    return welcomed


@cache
def mergeable_class() -> type:
    """A rotating cache class that ``isinstance`` accepts as a ``KVCache``."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    return type("RotatingKVCache", (RotatingKVCache, KVCache), {})


PATCH = Patch(
    id="vllm-sliding-vlm",
    severity="feature",
    every_model=True,
    summary="vllm-mlx --mllm rejects models whose first layer has a sliding window",
    targets=(
        Target(
            "vllm-mlx",
            "vllm_mlx.mllm_batch_generator",
            "MLLMBatchGenerator._run_vision_encoding",
            around(encoded),
            fingerprint_of=("MLLMBatchGenerator._process_prompts",),
        ),
    ),
)
