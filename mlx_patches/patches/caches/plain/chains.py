"""Counts of batch caches that no layer reads: they are evaluated with the keys now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_LM = ("mlx-lm", "mlx_lm.models.cache")
_VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# How many positions may pass, in steps, until the counts are evaluated.
EVERY = 32


def update_and_tie(
    update: Callable[..., Any], cache: Any, keys: Any, *args: Any, **kwargs: Any
) -> Any:
    """The release's own update; every so often the next step evaluates its counts too."""
    out = update(cache, keys, *args, **kwargs)
    tokens = keys.shape[-2]
    # A piece of a prompt adds one node for many positions; the steps after it tie that as well.
    if tokens < EVERY:
        # A rotating cache begins ``_idx`` anew.
        fed = cache._offset if "_offset" in cache.__dict__ else cache._idx
        if fed % EVERY < tokens:  # a multiple was passed
            tie_counts(cache)
    return out


def tie_counts(cache: Any) -> None:
    """Have offset and padding evaluated whenever the keys are, at no copy of them.

    Where MLX cannot tie them to the keys they are evaluated now; nothing waits for that.
    """
    import mlx.core as mx

    held = cache.__dict__  # not through handles: nobody keeps these
    keys, counts = cache.keys, [held["offset"], held["left_padding"]]
    if not hasattr(mx, "depends"):  # MLX below 0.29.2
        mx.async_eval(*counts)
    elif isinstance(keys, (tuple, list)):  # packed keys, scales and biases
        first = mx.depends(keys[0], counts)
        cache.keys = type(keys)((first, *keys[1:]))
    else:
        cache.keys = mx.depends(keys, counts)


# Class to the methods that count.
_KINDS: dict[str, tuple[str, ...]] = {
    "BatchKVCache": ("update_and_fetch",),
    "BatchRotatingKVCache": ("_update_in_place", "_update_concat"),
}

OFFSET_CHAIN = Patch(
    id="offset-chain",
    summary="a batch grows by a graph node a token in each layer without rotary positions",
    targets=tuple(
        Target(
            *place,
            f"{kind}.update_and_fetch",
            around(update_and_tie),
            body=tuple(f"{kind}.{method}" for method in methods),
        )
        for place, kinds in (
            (_LM, _KINDS),
            (_VLM, _KINDS | {"BatchQuantizedKVCache": ("update_and_fetch",)}),
        )
        for kind, methods in kinds.items()
    ),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each layer without rotary positions.

    Why
        ``update_and_fetch`` adds to ``offset``, lazily. A layer that rotates by it evaluates it
        with the step. One that does not (NoPE layers: Jamba, Kimi Linear, Nemotron-H, Granite
        hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3) never does, and each token chains another
        node, with a buffer of its own, to all before it, until Metal ends the process with
        "Resource limit (499000) exceeded". So does the ``left_padding`` of every sliding layer
        but the first, once its window is full.
    How
        Every 32 positions of steps the keys are made to depend on both counts: the next step
        evaluates them all. Nothing is copied or waited for. A long piece of a prompt gets nothing.
    Upstream
        mlx-lm 0.31.1 does it at every step for ``BatchRotatingKVCache``; ``BatchKVCache`` is not
        fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release leaves a count unevaluated.
    """,
)
