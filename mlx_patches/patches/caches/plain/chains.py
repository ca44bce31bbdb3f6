"""``offset`` of batch caches that no layer reads: it is evaluated with the keys now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_LM = ("mlx-lm", "mlx_lm.models.cache")
_VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# How many positions may pass until ``offset`` is evaluated.
EVERY = 32


def update_and_tie(
    update: Callable[..., Any], cache: Any, keys: Any, *args: Any, **kwargs: Any
) -> Any:
    """The release's own update; every so often the next step evaluates ``offset`` too."""
    out = update(cache, keys, *args, **kwargs)
    if cache._idx % EVERY < keys.shape[-2]:  # a multiple was passed
        tie_offset(cache)
    return out


def tie_offset(cache: Any) -> None:
    """Have ``offset`` evaluated whenever the keys are, at no copy of them."""
    import mlx.core as mx

    keys = cache.keys
    if isinstance(keys, (tuple, list)):  # packed keys, scales and biases
        first = mx.depends(keys[0], cache.offset)
        cache.keys = type(keys)((first, *keys[1:]))
    else:
        cache.keys = mx.depends(keys, cache.offset)


OFFSET_CHAIN = Patch(
    id="offset-chain",
    summary="a batch grows by a graph node a token in each layer without rotary positions",
    targets=tuple(
        Target(*place, f"{kind}.update_and_fetch", around(update_and_tie))
        for place, kinds in (
            (_LM, ("BatchKVCache",)),
            (_VLM, ("BatchKVCache", "BatchQuantizedKVCache")),
        )
        for kind in kinds
    ),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each layer without rotary positions.

    Why
        ``update_and_fetch`` adds to ``offset``, lazily. A layer that rotates by it evaluates it
        with the step. One that does not (NoPE layers: Jamba, Kimi Linear, Nemotron-H, Granite
        hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3) never does, and each token chains another
        node, with a buffer of its own, to all before it, until Metal ends the process with
        "Resource limit (499000) exceeded".
    How
        Every 32 positions the keys are made to depend on ``offset``: the next step evaluates
        both. ``BatchRotatingKVCache`` does it at every step. Nothing is copied or waited for.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release leaves ``offset`` unevaluated.
    """,
)
