"""Counts of batch caches that no layer reads: their graphs stay small."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ....core.patch import MISSING, Patch, Target, Written, around
from .reads import make_handle

_LM = ("mlx-lm", "mlx_lm.models.cache")
_VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# The graph is cut once in this many positions.
EVERY = 32

# -- offset-chain ------------------------------------------------------------------------------

# The cache attribute that holds its ``Counted``; any write of ``offset`` removes it.
NOTE = "_mlx_patches_offset"
# In its place while an update runs. It is false: an update that raised leaves it behind.
_UPDATING = ()


class Counted(NamedTuple):
    """A cache's offset when a count began, and the number of positions fed since. Immutable.

    Args:
        since: identifies the application of the patch; a count of an earlier one may be stale.
        offset: the value when the count began, (rows,).
        fed: how many positions were fed since.
        is_evaluated: the keys depend on ``offset``, so a step evaluates it.
    """

    since: object
    offset: Any
    fed: int
    is_evaluated: bool


def update_and_count(
    since: object,
    update: Callable[[Any, Any, Any], Any],
    cache: Any,
    keys: Any,
    values: Any,
) -> Any:
    """Run the release's update; once in ``EVERY`` positions, replace the chain of its additions.

    Keys and values are (rows, heads, tokens, width), or tuples of such arrays.
    """
    held = cache.__dict__
    note = held.get(NOTE)
    if not note or note.since is not since:
        note = Counted(since, make_handle(held.get("offset")), 0, False)
    held[NOTE] = _UPDATING
    out = update(cache, keys, values)
    if held.pop(NOTE, None) is _UPDATING:
        return out  # the update wrote no offset
    tokens = keys.shape[-2]
    fed = note.fed + tokens
    is_evaluated = note.is_evaluated
    # A longer piece of a prompt adds one node for many positions; a later step replaces it too.
    if fed % EVERY < tokens < EVERY:
        held["offset"] = note.offset + fed
        if not is_evaluated:
            tie(cache, note.offset, held["left_padding"])
            is_evaluated = True
    held[NOTE] = Counted(since, note.offset, fed, is_evaluated)
    return out


def count_updates(update: Any) -> Any:
    """Factory of the replacement; each application of the patch begins new counts."""
    return around(functools.partial(update_and_count, object()))(update)


def end_count(cache: Any) -> None:
    """End a cache's count, because its offset is written."""
    cache.__dict__.pop(NOTE, None)


def watch_offset(original: Any) -> Any:
    """Factory of the attribute ``offset``, whose writes end the count."""
    if original is MISSING:
        return Written("offset", end_count)

    def put(cache: Any, value: Any) -> None:
        end_count(cache)
        original.fset(cache, value)

    return property(original.fget, put, original.fdel, original.__doc__)


def _counted(place: tuple[str, str], kind: str) -> tuple[Target, Target]:
    """The targets that count a class's updates."""
    update = f"{kind}.update_and_fetch"
    return (
        Target(
            *place,
            f"{kind}.offset",
            watch_offset,
            fingerprint_of=(update,),
            defines_new_attribute=True,
            supports=True,
        ),
        Target(*place, update, count_updates),
    )


def tie(cache: Any, *counts: Any) -> None:
    """Make a cache's keys depend on counts, without copying the keys.

    The counts are then evaluated with the keys. Where MLX has no ``depends``, their evaluation
    starts now, and nothing waits for it.
    """
    import mlx.core as mx

    keys = cache.keys
    if not hasattr(mx, "depends"):  # MLX below 0.29.2
        mx.async_eval(*counts)
    elif isinstance(keys, (tuple, list)):  # packed keys, scales and biases
        first = mx.depends(keys[0], list(counts))
        cache.keys = type(keys)((first, *keys[1:]))
    else:
        cache.keys = mx.depends(keys, list(counts))


OFFSET_CHAIN = Patch(
    id="offset-chain",
    summary="a batch grows by a graph node a token in each layer without rotary positions",
    targets=(
        *_counted(_LM, "BatchKVCache"),
        *_counted(_VLM, "BatchKVCache"),
        *_counted(_VLM, "BatchQuantizedKVCache"),
    ),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each layer without rotary positions.

    Why
        ``update_and_fetch`` adds to ``offset``, lazily. A layer with rotary positions reads it,
        so each step evaluates it. A layer without them never evaluates it (NoPE layers: Jamba,
        Kimi Linear, Nemotron-H, Granite hybrids, Cohere 2, EXAONE 4, Llama 4, SmolLM3; M-RoPE
        models, whose positions are computed once for all layers: Qwen-VL): each token adds a
        node, with a buffer of its own, to the chain of all before it, until Metal ends the
        process with "Resource limit (499000) exceeded".
    How
        The positions fed since the last change of ``offset`` are counted in Python. Once in 32,
        ``offset`` becomes its value at that change plus the count: one node in place of the
        chain, whose additions never run. That value is evaluated once, with the keys. Any other
        write of ``offset`` ends the count. Pieces of a prompt of 32 tokens or more are left as
        they are.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release leaves ``offset`` unevaluated.
    """,
)

# -- rotating-chain ----------------------------------------------------------------------------


def update_and_tie(
    update: Callable[[Any, Any, Any], Any], cache: Any, keys: Any, values: Any
) -> Any:
    """Run the release's update; once in ``EVERY`` positions, tie the counts to the keys."""
    due = is_due(cache, keys, values)
    out = update(cache, keys, values)
    if due:
        held = cache.__dict__  # not through handles: these references do not outlive the call
        tie(cache, held["offset"], held["left_padding"])
    return out


def is_due(cache: Any, keys: Any, values: Any) -> bool:
    """Whether an update with these keys (..., tokens, width) passes a multiple of ``EVERY``."""
    tokens = keys.shape[-2]
    fed = cache._offset  # ``_idx`` starts over when the window wraps
    return bool((fed + tokens) % EVERY < tokens < EVERY)


ROTATING_CHAIN = Patch(
    id="rotating-chain",
    summary="a batch grows by a graph node a token in each sliding layer with a full window",
    targets=(
        Target(
            *_LM,
            "BatchRotatingKVCache.update_and_fetch",
            around(update_and_tie),
            fingerprint_of=(
                "BatchRotatingKVCache._update_in_place",
                "BatchRotatingKVCache._update_concat",
            ),
            when=is_due,
        ),
    ),
    probe="mlx_patches.probes.offset_chain:probe",
    module=__name__,
    doc="""A batch grows by a graph node a token in each sliding layer with a full window.

    Why
        Once its window is full, a rotating cache lowers ``left_padding`` by one at each step,
        lazily. Only the first sliding layer's is read, for the mask. In the others each token
        adds a node, with a buffer of its own, to the chain of all before it, until Metal ends
        the process with "Resource limit (499000) exceeded".
    How
        Once in 32 positions the keys are made to depend on both counts, so the next step
        evaluates them. Nothing is copied, and nothing waits.
    Upstream
        mlx-lm 0.31.1 does this at every step, and so does mlx-vlm's own copy of the class.
    Retire when
        No supported release is older than mlx-lm 0.31.1.
    """,
)
