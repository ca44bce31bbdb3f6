"""Evaluate ``offset`` and ``left_padding`` of batch caches where no layer reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around

_LM = ("mlx-lm", "mlx_lm.models.cache")
_VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# The counts are evaluated once in this many positions.
EVERY = 32


def update_and_tie(
    update: Callable[[Any, Any, Any], Any], cache: Any, keys: Any, values: Any
) -> Any:
    """Run the release's update; once in ``EVERY`` positions, tie the counts to the keys."""
    due = is_due(cache, keys, values)
    out = update(cache, keys, values)
    if due:
        tie_counts(cache)
    return out


def is_due(cache: Any, keys: Any, values: Any) -> bool:
    """Whether an update with these keys (..., tokens, width) passes a multiple of ``EVERY``."""
    tokens = keys.shape[-2]
    # A longer piece of a prompt adds one node for many positions; a later step ties it as well.
    if tokens >= EVERY:
        return False
    # ``_idx`` of a rotating cache starts over when the window wraps.
    fed = cache._offset if "_offset" in cache.__dict__ else cache._idx
    return bool((fed + tokens) % EVERY < tokens)


def tie_counts(cache: Any) -> None:
    """Make the keys depend on ``offset`` and ``left_padding``, without copying the keys.

    Both are then evaluated with the keys. Where MLX has no ``depends``, their evaluation starts
    now, and nothing waits for it.
    """
    import mlx.core as mx

    held = cache.__dict__  # not through handles: these references do not outlive the call
    keys, counts = cache.keys, [held["offset"], held["left_padding"]]
    if not hasattr(mx, "depends"):  # MLX below 0.29.2
        mx.async_eval(*counts)
    elif isinstance(keys, (tuple, list)):  # packed keys, scales and biases
        first = mx.depends(keys[0], counts)
        cache.keys = type(keys)((first, *keys[1:]))
    else:
        cache.keys = mx.depends(keys, counts)


# The methods of each class that advance the counts.
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
            when=is_due,
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
        ``update_and_fetch`` adds to ``offset``, lazily. A layer with rotary positions reads it,
        so each step evaluates it. A layer without them (NoPE layers: Jamba, Kimi Linear,
        Nemotron-H, Granite hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3) never evaluates it:
        each token adds a node, with a buffer of its own, to the chain of all before it, until
        Metal ends the process with "Resource limit (499000) exceeded". The ``left_padding`` of
        every sliding layer but the first grows in the same way, once its window is full.
    How
        Once in 32 positions the keys are made to depend on both counts, so the next step
        evaluates them. Nothing is copied, and nothing waits. Pieces of a prompt of 32 tokens or
        more are left as they are.
    Upstream
        mlx-lm 0.31.1 does this at every step for ``BatchRotatingKVCache``; ``BatchKVCache`` is
        not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release leaves a count unevaluated.
    """,
)
