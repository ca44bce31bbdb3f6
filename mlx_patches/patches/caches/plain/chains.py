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


def _update_of(place: tuple[str, str], kind: str, *methods: str) -> Target:
    """The target that ties a class's counts; ``methods`` advance them."""
    name = f"{kind}.update_and_fetch"
    body = tuple(f"{kind}.{method}" for method in methods)
    return Target(*place, name, around(update_and_tie), fingerprint_of=body, when=is_due)


OFFSET_CHAIN = Patch(
    id="offset-chain",
    summary="a batch grows by a graph node a token in each layer without rotary positions",
    targets=(
        _update_of(_LM, "BatchKVCache", "update_and_fetch"),
        _update_of(_VLM, "BatchKVCache", "update_and_fetch"),
        _update_of(_VLM, "BatchQuantizedKVCache", "update_and_fetch"),
    ),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each layer without rotary positions.

    Why
        ``update_and_fetch`` adds to ``offset``, lazily. A layer with rotary positions reads it,
        so each step evaluates it. A layer without them (NoPE layers: Jamba, Kimi Linear,
        Nemotron-H, Granite hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3) never evaluates it:
        each token adds a node, with a buffer of its own, to the chain of all before it, until
        Metal ends the process with "Resource limit (499000) exceeded".
    How
        Once in 32 positions the keys are made to depend on both counts, so the next step
        evaluates them. Nothing is copied, and nothing waits. Pieces of a prompt of 32 tokens or
        more are left as they are.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release leaves ``offset`` unevaluated.
    """,
)

ROTATING_CHAIN = Patch(
    id="rotating-chain",
    summary="a batch grows by a graph node a token in each sliding layer with a full window",
    targets=(_update_of(_LM, "BatchRotatingKVCache", "_update_in_place", "_update_concat"),),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each sliding layer with a full window.

    Why
        Once its window is full, a rotating cache lowers ``left_padding`` by one at each step,
        lazily. Only the first sliding layer's is read, for the mask. In the others each token
        adds a node, with a buffer of its own, to the chain of all before it, until Metal ends
        the process with "Resource limit (499000) exceeded".
    How
        As in ``offset-chain``: once in 32 positions the keys are made to depend on the counts.
    Upstream
        mlx-lm 0.31.1 does this at every step, and so does mlx-vlm's own copy of the class.
    Retire when
        No supported release is older than mlx-lm 0.31.1.
    """,
)
