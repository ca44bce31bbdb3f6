"""vllm-mlx --mllm rejects models whose first layer has a sliding window.

Why: Before it merges the rows' caches, the multimodal batch generator requires the first layer's
    cache to be a ``KVCache``, to exclude quantized ones. ``RotatingKVCache`` is not a subclass of
    it: every request to a Gemma model fails. A rotating cache that holds more tokens than its
    window could not be merged either.
How: After a row's forward pass, its rotating caches are cut to their windows, and get a class with
    the methods of ``RotatingKVCache`` that is also a subclass of ``KVCache``.
Upstream: vllm-mlx 0.2.8 accepts both classes.
Retire when: vllm-mlx below 0.2.8 is no longer supported.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from ....core.verbs import Patch, after
from ..._shared.rows import cut_to_window


def make_mergeable(cache: Any) -> None:
    """Change a row's caches so that they can be merged."""
    if cache:
        cache[:] = convert_caches(cache)


def convert_caches(caches: Sequence[Any]) -> list[Any]:
    from mlx_lm.models.cache import RotatingKVCache

    accepted = []
    for layer in caches:
        if type(layer) is RotatingKVCache:
            layer = cut_to_window(layer)
            layer.__class__ = make_mergeable_class()
        accepted.append(layer)
    return accepted


@cache
def make_mergeable_class() -> type:
    """A rotating cache class that ``isinstance`` accepts as a ``KVCache``."""
    from mlx_lm.models.cache import KVCache, RotatingKVCache

    return type("RotatingKVCache", (RotatingKVCache, KVCache), {})


PATCH = Patch(
    id="vllm-sliding-vlm",
    severity="feature",
    targets=after(
        "vllm_mlx.mllm_batch_generator:MLLMBatchGenerator._run_vision_encoding",
        make_mergeable,
        fingerprint_of=("MLLMBatchGenerator._process_prompts",),
    ),
)
