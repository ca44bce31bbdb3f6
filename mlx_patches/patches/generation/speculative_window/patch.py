"""mlx-lm speculative decoding keeps rejected tokens once a sliding window is full.

Why: Draft tokens that the model rejects are trimmed from the caches. A rotating cache with a full
    window is not trimmable: ``trim_prompt_cache`` then trims no layer at all and returns 0, which
    the caller ignores. The rejected tokens stay in the context of all later tokens.
How: The model verifies the draft tokens in one call, and a rotating cache keeps all tokens of a
    call beside its window until the next call. Tokens beyond its window, or all tokens if none has
    been dropped yet, can be cut off exactly, and the patch does so. The draft model drafts token by
    token, so its own full window still keeps rejected tokens: its drafts get worse, the answer does
    not.
Upstream: Not fixed in mlx-lm 0.32.2.
Retire when: ``trim_prompt_cache`` trims full windows as far as it is exact, or decoding raises an
    error.
"""

from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function, Patch, wrap


def trim_windows(trim: Function, cache: Sequence[Any], num_tokens: int) -> Any:
    """Cut the last tokens off all caches, or off none; returns the number of tokens cut."""
    layers = [inner for layer in cache for inner in getattr(layer, "caches", (layer,))]
    release_trims = all(layer.is_trimmable() for layer in layers)
    possible = all(layer.is_trimmable() or count_trimmable(layer) >= num_tokens for layer in layers)
    if release_trims or not possible or num_tokens < 1:
        return trim(cache, num_tokens)
    for layer in layers:
        if layer.is_trimmable():
            layer.trim(num_tokens)
        else:
            cut_window(layer, num_tokens)
    return num_tokens


def count_trimmable(layer: Any) -> int:
    """The number of last tokens that can be cut off a full window exactly."""
    is_window = hasattr(layer, "max_size") and isinstance(layer.offset, int)
    if not is_window or layer._idx != layer.keys.shape[2]:
        return 0  # a batch, no window, or one that is not in order
    dropped_none = layer._idx == layer.offset
    return int(layer._idx if dropped_none else max(0, layer._idx - layer.max_size))


def cut_window(layer: Any, count: int) -> None:
    layer._idx -= count
    layer.offset -= count
    layer.keys, layer.values = (side[:, :, : layer._idx] for side in (layer.keys, layer.values))


PATCH = Patch(
    id="speculative-window",
    every_model=True,
    targets=wrap(
        "mlx_lm.models.cache:trim_prompt_cache",
        trim_windows,
        fingerprint_of=("trim_prompt_cache", "RotatingKVCache.is_trimmable"),
    ),
)
