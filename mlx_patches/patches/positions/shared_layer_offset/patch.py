"""Gemma 3n and 4: wrong RoPE positions in KV-shared layers, even for a single request.

Why: The last layers have no keys: they read an earlier layer's keys, values and ``offset`` from its
    cache. That layer has already updated the cache, so the offset is the end of the chunk instead
    of its beginning, and the positions of the queries are one chunk length too high. Logits depend
    on how the prompt is split into chunks. In a batch, ``keys, values = cache.state`` raises in
    mlx-lm, since a batch's state has more parts.
How: A shared layer gets a view of that cache with the offset before the update, and with only keys
    and values as its state. Releases that pass keys, values or the offset besides the cache are
    unchanged.
Upstream: Gemma 3n: mlx-lm 0.32.0 reads the offset once, before the first layer; not fixed in
    mlx-vlm 0.7.10. Gemma 4: only mlx-vlm 0.4.4 is affected.
Retire when: mlx-vlm's Gemma 3n reads it before the update too, and no older release is supported.
"""

from typing import Any

from ....core.verbs import Patch, family, vlm_family, wrap
from ..._shared.parts import view


def attend_before_update(
    call: Any,
    attention: Any,
    x: Any,
    mask: Any = None,
    cache: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a layer's attention; a shared layer gets the cache with the offset before its update."""
    has_shared_keys = args or kwargs
    if not has_shared_keys and cache is not None and attention.is_kv_shared_layer:
        cache = rewind_cache(cache, x.shape[1])
    return call(attention, x, mask, cache, *args, **kwargs)


def rewind_cache(cache: Any, tokens: int) -> Any:
    """A view of a cache updated by ``tokens``, with the offset before them."""
    return view(
        cache, offset=lambda cache: cache.offset - tokens, state=lambda cache: cache.state[:2]
    )


PATCH = Patch(
    id="shared-layer-offset",
    targets=wrap(
        (
            *family("gemma3n", "Gemma3nAttention.__call__"),
            *vlm_family("gemma4", "Attention.__call__"),
        ),
        attend_before_update,
    ),
)
