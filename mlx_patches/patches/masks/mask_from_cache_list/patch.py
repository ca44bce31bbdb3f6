"""LLaVA, Idefics, GLM-V and others attend to the left padding of a batch.

Why: ``create_attention_mask(h, cache)`` calls ``make_mask`` of one layer's cache. Many models pass
    the whole list, or a slice of it. A list has no ``make_mask``, so the function returns "causal"
    for a prompt and None for a decode step, and every row attends to its padding. For a single
    request these results are right.
How: A list or tuple is replaced by its first attention cache: a model that needs a sliding layer's
    mask passes a slice that begins with one (Gemma 3n in mlx-vlm 0.4). A list without attention
    caches is passed on unchanged. So is a list whose rows are known to have no padding: the
    release's result is right then, and "causal" is faster than the same mask as an array. The name
    is rebound in every module that imported it.
Upstream: mlx-vlm 0.7.9 takes the first cache of a list. mlx-vlm took the function from mlx-lm up to
    0.6.3; mlx-lm itself passes lists in minicpm3 and phixtral up to 0.31.3.
Retire when: No supported release is older than mlx-vlm 0.7.9 and mlx-lm 0.32.0.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Patch, argument, everywhere
from ..._shared.unpadded import is_unpadded


def take_first_cache(h: Any, cache: Any, window_size: Any, return_array: Any) -> Any:
    """The first attention cache of a list; the list, if the release's own mask is right."""
    first = find_attention_cache(cache)
    plain = window_size is None and not return_array
    if first is None or (plain and is_unpadded(first, h.shape[1])):
        return cache
    return first


def is_list(cache: Any) -> bool:
    return isinstance(cache, (list, tuple))


def find_attention_cache(caches: Sequence[Any]) -> Any:
    return next(filter(holds_keys, caches), None)


def holds_keys(cache: Any) -> bool:
    """Whether a cache holds keys and makes masks for them, unlike a recurrent cache."""
    return hasattr(cache, "update_and_fetch") and hasattr(cache, "make_mask")


PATCH = Patch(
    id="mask-from-cache-list",
    formerly="mask-list",
    targets=argument(
        everywhere("models.base:create_attention_mask"), "cache", take_first_cache, when=is_list
    ),
)
