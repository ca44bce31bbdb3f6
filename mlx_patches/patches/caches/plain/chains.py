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

# Attributes of a cache: its ``Count``, or None; ``_idx`` at the next write of ``offset`` if the last
# one was of a single token; ``_idx`` at which an update has more to do; and how many runs of single
# tokens began since the offset was evaluated.
COUNT, NEXT = "_mlx_patches_count", "_mlx_patches_next"
DUE, RUNS = "_mlx_patches_due", "_mlx_patches_runs"
# After so many runs the offset is evaluated.
MANY = 8


class Count(NamedTuple):
    """A count of the single tokens that were fed since a position. Immutable: copies share it.

    Args:
        since: identifies the application of the patch; a count of an earlier one may be stale.
        offset: the offset (rows,) at that position.
        position: the cache's ``_idx`` there.
        left_padding: the cache's array; another one means that rows came, left or were replaced.
        is_evaluated: a step evaluates ``offset``, since the keys depend on it.
    """

    since: object
    offset: Any
    position: int
    left_padding: Any
    is_evaluated: bool


class WatchedOffset(Written):
    """``offset``, whose writes end the run and its count unless they are of the next single token.

    An update writes the offset before it advances ``_idx``. Updates of one token each write it at
    one position after the other; any other writer, or a longer piece, breaks this order.
    """

    def __set__(self, cache: Any, value: Any) -> None:
        held = cache.__dict__
        held["offset"] = value
        try:
            position = held["_idx"]
            if position != held[NEXT]:
                held[COUNT] = None
                held[DUE] = position + 1  # if a single token is fed now, the next one is counted
                held[RUNS] += 1
            held[NEXT] = position + 1
        except KeyError:  # the cache is being made, or was made before the patch was applied
            held[COUNT] = None
            held[NEXT] = held[DUE] = -1
            held[RUNS] = 0


def watch_offset(original: Any) -> Any:
    """Factory of the attribute ``offset``, whose writes are watched."""
    watched = WatchedOffset("offset")
    if original is MISSING:
        return watched

    def put(cache: Any, value: Any) -> None:
        original.fset(cache, value)
        watched.__set__(cache, cache.__dict__["offset"])

    return property(original.fget, put, original.fdel, original.__doc__)


def cut_chain(
    since: object,
    update: Callable[[Any, Any, Any], Any],
    cache: Any,
    keys: Any,
    values: Any,
) -> Any:
    """Replace the chain of additions by one if only single tokens were fed; then run the update.

    Keys and values are (rows, heads, tokens, width), or tuples of such arrays.
    """
    held = cache.__dict__
    position, padding, count = held["_idx"], held["left_padding"], held.get(COUNT)
    was_fed_singly = held.get(NEXT) == position
    if (
        was_fed_singly
        and count is not None
        and count.since is since
        and count.left_padding is padding
    ):
        held["offset"] = count.offset + (position - count.position)
        if not count.is_evaluated:
            tie(cache, count.offset, padding)
            held[COUNT] = count._replace(is_evaluated=True)
    else:
        is_evaluated = cache.keys is not None and held.get(RUNS, 0) >= MANY
        if is_evaluated:
            tie(cache, held["offset"], padding)
            held[RUNS] = 0
        if was_fed_singly:
            start = make_handle(held["offset"])
            held[COUNT] = Count(since, start, position, padding, is_evaluated)
    held[DUE] = position + EVERY
    return update(cache, keys, values)


def is_due(cache: Any, keys: Any, values: Any) -> bool:
    """Whether an update replaces the chain, begins a count, or has the offset evaluated."""
    held = cache.__dict__
    position = held["_idx"]
    try:
        due: bool = position == held[DUE] or (position != held[NEXT] and held[RUNS] >= MANY)
    except KeyError:  # the offset was not written since the patch was applied
        return False
    return due


def cut_chains(update: Any) -> Any:
    """Factory of the replacement; each application of the patch begins new counts."""
    return around(functools.partial(cut_chain, object()))(update)


def _counted(place: tuple[str, str], kind: str) -> tuple[Target, Target]:
    """The targets that count the tokens of a class."""
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
        Target(*place, update, cut_chains, when=is_due),
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
        Tokens that are fed singly are counted from the second one on. Once in 32 of them,
        ``offset`` becomes its value at the start of the count plus their number: one node in
        place of the chain, whose additions never run. That value is evaluated once, with the
        keys. Any other write of ``offset``, and a piece of several tokens, ends the run and its
        count; after eight runs the offset is evaluated.
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
    due = is_tied(cache, keys, values)
    out = update(cache, keys, values)
    if due:
        held = cache.__dict__  # not through handles: these references do not outlive the call
        tie(cache, held["offset"], held["left_padding"])
    return out


def is_tied(cache: Any, keys: Any, values: Any) -> bool:
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
            when=is_tied,
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
