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

# Attributes of a cache: its ``Count``, ``_idx`` when ``offset`` was last written, and how many
# updates no count covered.
COUNT, LAST, UNCOVERED = "_mlx_patches_count", "_mlx_patches_last", "_mlx_patches_uncovered"
# One in so many of those updates has the offset evaluated.
UPDATES = 8


class Count(NamedTuple):
    """A count of the single tokens that were fed since a position. Immutable: copies share it.

    Args:
        since: identifies the application of the patch; a count of an earlier one may be stale.
        offset: the offset (rows,) at that position.
        position: the cache's ``_idx`` there.
        left_padding: the cache's array; another one means that rows came, left or were replaced.
        due: the position at which the chain is to be replaced.
        is_evaluated: the keys depend on ``offset``, so a step evaluates it.
    """

    since: object
    offset: Any
    position: int
    left_padding: Any
    due: int
    is_evaluated: bool


class WatchedOffset(Written):
    """``offset``, whose writes end the cache's count unless updates of one token are the writers.

    An update writes the offset before it advances ``_idx``. Updates of one token each write it at
    one position after the other; any other writer, or a longer piece, breaks this order.
    """

    def __set__(self, cache: Any, value: Any) -> None:
        held = cache.__dict__
        held["offset"] = value
        position = held.get("_idx")
        if type(position) is not int or held.get(LAST) != position - 1:
            held.pop(COUNT, None)
        held[LAST] = position


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
    if (
        count is not None
        and count.since is since
        and count.left_padding is padding
        and held.get(LAST) == position - 1
    ):
        held["offset"] = count.offset + (position - count.position)
        if not count.is_evaluated:
            tie(cache, count.offset, padding)
        held[COUNT] = count._replace(due=position + EVERY, is_evaluated=True)
        return update(cache, keys, values)
    held[UNCOVERED] = held.get(UNCOVERED, 0) + 1
    if cache.keys is not None and held[UNCOVERED] % UPDATES == 0:
        tie(cache, held["offset"], padding)
    out = update(cache, keys, values)
    # No count begins with a piece of a prompt: a handle keeps MLX from reusing the offset's buffer.
    if held["_idx"] == position + 1:
        start = make_handle(held["offset"])
        held[COUNT] = Count(since, start, position + 1, padding, position + EVERY, False)
    return out


def is_uncounted(cache: Any, keys: Any, values: Any) -> bool:
    """Whether a cache has no count, or one that is due."""
    count = cache.__dict__.get(COUNT)
    return count is None or cache._idx >= count.due


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
        Target(*place, update, cut_chains, when=is_uncounted),
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
        The tokens that are fed singly are counted. Once in 32 of them, ``offset`` becomes its
        value at the start of the count plus their number: one node in place of the chain, whose
        additions never run. That value is evaluated once, with the keys. Any other write of
        ``offset``, and a piece of several tokens, ends the count. An update that no count covers
        begins one if it feeds a single token; one in eight of these updates has the offset
        evaluated.
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
