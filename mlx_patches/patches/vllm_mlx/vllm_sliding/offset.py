"""vllm-mlx --mllm: wrong positions after a prompt longer than the sliding window.

Why: Before it merges the rows' caches, and for one from the prefix cache, the multimodal batch
    generator sets a rotating cache's ``offset`` to its window's length. The offset is the RoPE
    position of the next token, so new keys and queries do not continue the window's positions.
How: A full window keeps its offset.
Upstream: vllm-mlx 0.5.0 keeps it.
Retire when: vllm-mlx below 0.5.0 is no longer supported.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, wrap


def keep_offsets(trim: Any, cache_list: Sequence[Any]) -> Any:
    """Cut caches to their windows; a full window keeps its offset."""
    offsets = [getattr(layer, "offset", None) for layer in cache_list]
    result = trim(cache_list)
    for layer, offset in zip(cache_list, offsets, strict=True):
        if is_full(layer):
            layer.offset = offset
    return result


def is_full(layer: Any) -> bool:
    """Whether a cache is a sliding window without a free slot."""
    keys = getattr(layer, "keys", None)
    return keys is not None and hasattr(layer, "max_size") and keys.shape[2] == layer.max_size


PATCH = Patch(
    id="vllm-sliding-offset",
    targets=wrap(
        "vllm_mlx.mllm_batch_generator:MLLMBatchGenerator._trim_rotating_caches", keep_offsets
    ),
)
