"""Counts of batch caches that no layer reads: their graphs stay small."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ....core.patch import MISSING, Patch, Target, Written, around
from .reads import make_handle

_LM = ("mlx-lm", "mlx_lm.models.cache")
_VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# The graph is cut once in this many positions.
EVERY = 32

# -- offset-chain ------------------------------------------------------------------------------

# A count of the single tokens that were fed since a position. It holds
# - the application of the patch: a count of an earlier one may be stale;
# - the offset (rows,) and ``_idx`` at that position;
# - ``left_padding``: another array means that rows came, left or were replaced;
# - whether a step evaluates that offset.
Count = tuple[object, Any, int, Any, bool]
# Attributes of a cache: its ``Count``, or None; ``_idx`` at which a count begins or the chain is
# replaced; the writes of ``offset`` since the last write of ``_idx``; the counts that ended since
# the offset was evaluated.
COUNT, DUE = "_mlx_patches_count", "_mlx_patches_due"
WRITES, ENDED = "_mlx_patches_writes", "_mlx_patches_ended"
FRESH = {COUNT: None, DUE: 0, WRITES: 0, ENDED: 0}
# The offset is evaluated after so many counts that ended.
MANY = 8


class WatchedOffset(Written):
    """``offset``, whose writes are counted."""

    def __set__(self, cache: Any, value: Any) -> None:
        held = cache.__dict__
        held["offset"] = value
        if WRITES not in held:  # the cache is being made, or was made without the patch
            held.update(FRESH)
        held[WRITES] += 1


def watch_offset(original: Any) -> Any:
    """Factory of the attribute ``offset``, whose writes are counted."""
    watched = WatchedOffset("offset")
    if original is MISSING:
        return watched

    def put(cache: Any, value: Any) -> None:
        original.fset(cache, value)
        watched.__set__(cache, cache.__dict__["offset"])

    return property(original.fget, put, original.fdel, original.__doc__)


class WatchedPosition(Written):
    """``_idx``, which an update advances after ``offset``.

    If it advances by one after a single write of ``offset``, an update of one token wrote both.
    Any other write of either one ends the count.
    """

    def __set__(self, cache: Any, value: Any) -> None:
        held = cache.__dict__
        if WRITES not in held or "_idx" not in held:  # the cache is being made
            held["_idx"] = value
            held.update(FRESH)
            return
        is_single = held[WRITES] == 1 and value == held["_idx"] + 1
        held["_idx"], held[WRITES] = value, 0
        try:
            if not is_single:
                end_count(cache)
            elif value >= held[DUE]:
                cut_chain(self, cache)
        except Exception:  # the host's write has succeeded, and the release's chain is right
            held[COUNT], held[DUE] = None, value + EVERY
            logging.getLogger("mlx_patches").warning(
                "offset-chain failed; the graph of this batch grows with each token", exc_info=True
            )


def watch_position(original: Any) -> Any:
    """Factory of the attribute ``_idx``; each application of the patch begins new counts."""
    return WatchedPosition("_idx")


def cut_chain(since: object, cache: Any) -> None:
    """Replace the chain of additions by one if it is counted; else begin a count."""
    held = cache.__dict__
    position, padding = held["_idx"], held["left_padding"]
    count: Count | None = held[COUNT]
    if count is not None and count[0] is since and count[3] is padding:
        _, start, begun, _, is_evaluated = count
        held["offset"] = start + (position - begun)
        if not is_evaluated:
            tie(cache, start, padding)
            held[COUNT] = (since, start, begun, padding, True)
    else:
        held[COUNT] = (since, make_handle(held["offset"]), position, padding, False)
    held[DUE] = position + EVERY


def end_count(cache: Any) -> None:
    """End a cache's count; the next single token begins one."""
    held = cache.__dict__
    held[COUNT], held[DUE] = None, 0
    held[ENDED] += 1
    if held[ENDED] >= MANY and cache.keys is not None:
        tie(cache, held["offset"], held["left_padding"])
        held[ENDED] = 0


def _counted(place: tuple[str, str], kind: str) -> tuple[Target, Target]:
    """The targets that count the tokens of a class."""
    update = f"{kind}.update_and_fetch"
    watched = (("offset", watch_offset), ("_idx", watch_position))
    first, second = (
        Target(
            *place,
            f"{kind}.{name}",
            factory,
            fingerprint_of=(update,),
            defines_new_attribute=True,
        )
        for name, factory in watched
    )
    return first, second


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
        The writes of ``offset`` and ``_idx`` tell which tokens were fed singly; these are counted.
        Once in 32 of them, ``offset`` becomes its value at the start of the count plus their
        number: one node in place of the chain, whose additions never run. That value is evaluated
        once, with the keys. Any other write, and a piece of several tokens, ends the count; after
        eight counts that ended, the offset is evaluated.
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
