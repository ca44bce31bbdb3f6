"""Speculative decoding with sliding windows says something else once a window is full.

Why
    Draft tokens that the model rejects are taken back out of the caches. A rotating cache whose
    window is full refuses, ``trim_prompt_cache`` then trims no layer at all and returns 0, and
    nobody looks: the rejected tokens stay in the context of everything that follows.
How
    The model's check feeds the draft tokens in one piece, and a rotating cache keeps all of a
    piece beside its window until the next one. What it holds beyond its window, or all while
    nothing has left it, can be cut off again exactly, and is. The draft model drafts token by
    token, and a full window of its own still keeps what was rejected: that makes its drafts
    worse, not the answer.
Upstream
    Not fixed in mlx-lm 0.32.2.
Retire when
    ``trim_prompt_cache`` takes back what a rotating cache can give, or decoding refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Patch, Target, around


def trimmed(trim: Callable[..., Any], cache: Sequence[Any], num_tokens: int) -> Any:
    """Take the last tokens out of all caches, or out of none; returns how many."""
    layers = [inner for layer in cache for inner in getattr(layer, "caches", (layer,))]
    free = all(layer.is_trimmable() for layer in layers)
    given = all(layer.is_trimmable() or spare(layer) >= num_tokens for layer in layers)
    if free or not given or num_tokens < 1:
        return trim(cache, num_tokens)
    for layer in layers:
        if layer.is_trimmable():
            layer.trim(num_tokens)
        else:
            cut(layer, num_tokens)
    return num_tokens


def spare(layer: Any) -> int:
    """How many of its last tokens a full window can do without."""
    if not hasattr(layer, "keep") or layer._idx != layer.keys.shape[2]:
        return 0  # not in order
    nothing_left_yet = layer._idx == layer.offset
    return int(layer._idx if nothing_left_yet else max(0, layer._idx - layer.max_size))


def cut(layer: Any, count: int) -> None:
    """Take the last tokens out of a window whose tokens are in order."""
    layer._idx -= count
    layer.offset -= count
    layer.keys, layer.values = (side[:, :, : layer._idx] for side in (layer.keys, layer.values))


PATCH = Patch(
    id="speculative-window",
    summary="speculative decoding with sliding windows goes wrong once a window is full",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "trim_prompt_cache",
            around(trimmed),
            body=("trim_prompt_cache", "RotatingKVCache.is_trimmable"),
        ),
    ),
    probe="mlx_patches.probes.speculative_window:probe",
    module=__name__,
)
