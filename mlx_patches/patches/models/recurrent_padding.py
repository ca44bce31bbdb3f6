"""Recurrent layers read a batch's padding as if it were text.

Why
    A recurrent state cannot forget a token. These families feed every position of a padded
    batch through their recurrence, or know of padding in the first piece of a prompt alone, so
    each row but the longest carries its padding in its state from then on.
How
    The batch is fed once, and its recurrent layers are told where rows have tokens: there alone
    states change. Mamba-2 layers close their steps at padding, others go in stretches between
    which no row begins or ends (``recurrent_batch``). After a single position, rows that have no
    token there get their states back. Where the model takes rows apart itself, and of Mamba-2
    where a piece has padding on both sides, rows are fed one by one, each with its own tokens and
    its own caches, which are then put together as a left-padded batch, and every output is joined
    (``recurrent_by_row``). Rows of equal lengths and decode steps are fed as ever.

    Padding that is used up is forgotten, so a decode step knows without the device that it has
    none. A piece whose caches announce padding reads the device once, one that is fed row by
    row twice.
Upstream
    mlx-lm 0.32.x masks some of these families; ``BatchGenerator(prefill_batch_size=1)`` feeds
    rows one by one for all of them, where a host can set it.
Retire when
    The families mask their recurrences.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ...core.patch import Factory, Patch, Target, around
from ..caches import rows as cache_rows
from .recurrent_batch import (
    announced,
    attend_with_window,
    call_in_stretches,
    close_step,
    hold_rows,
    scan_in_stretches,
)
from .recurrent_by_row import forward_per_row
from .row_calls import Span, bind_call, find_argument, find_shape

# How a family's batch is fed where rows have padding.
MASKED_STEPS, STRETCHES, BY_ROW = "masked steps", "stretches", "by row"
# How a recurrent cache announces padding.
MARKS = ("left_padding", "lengths")

# Families of Mamba-2 layers, which mask padding but for their state.
MAMBA2 = ("falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "plamo2")
# What is fed in stretches, for each family of other recurrences.
LAYERS: dict[str, tuple[str, Factory]] = {
    "baichuan_m1": ("Attention.__call__", around(attend_with_window)),
    "bailing_moe_linear": ("recurrent_gla", around(scan_in_stretches)),
    "jamba": ("JambaMambaMixer.__call__", call_in_stretches),
    "longcat_flash_ngram": ("NgramEmbedding.__call__", call_in_stretches),
    "mamba": ("MambaBlock.__call__", call_in_stretches),
    "olmo_hybrid": ("GatedDeltaNet.__call__", call_in_stretches),
    "recurrent_gemma": (
        "RecurrentBlock.__call__",
        functools.partial(call_in_stretches, begins_anew=True),
    ),
    "rwkv7": ("Rwkv7Layer.__call__", call_in_stretches),
}
FAMILIES = tuple(sorted((*MAMBA2, *LAYERS)))
# These mask padding as ``ArraysCache.make_mask`` says, but for the window of their convolution.
MASKED = {"qwen3_5": ("GatedDeltaNet.__call__", call_in_stretches)}
# These know of left padding where they are told the positions of a prompt, and not of right
# padding behind tokens that they were fed before.
KNOW_LEFT: dict[str, tuple[str, Factory] | None] = {
    "qwen3_5": ("Qwen3_5GatedDeltaNet.__call__", call_in_stretches),
    "qwen3_5_moe": None,  # has the layers of qwen3_5
    "zaya1_vl": ("CCA.__call__", functools.partial(call_in_stretches, asks_keys=True)),
}


# Right in the releases whose engine pads on the left alone: the mixers tell them apart.
MIXERS = {
    "qwen3_5": "GatedDeltaNet",
    "granitemoehybrid": "GraniteMoeHybridMamba2Mixer",
    "mamba2": "Mamba2Block",
    "nemotron_h": "NemotronHMamba2Mixer",
    "plamo2": "Mamba",
}


def call_with_padding(
    call: Callable[..., Any], how: str = BY_ROW, knows_left: bool = False
) -> Callable[..., Any]:
    """The model's call, for batches some of whose rows have padding too.

    Args:
        call: the model's own.
        how: its recurrent layers are told of padding.
        knows_left: it counts left padding itself where positions come with it, and keys and
            values are not quantized. So it does in some releases, which feed left-padded rows
            one by one themselves.
    """
    own = inspect.unwrap(call).__globals__
    knows_left &= any(name.endswith("left_padding_info") for name in own)
    how = BY_ROW if knows_left else how
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        bound = bind_call(signature, args, kwargs)
        cache = () if bound is None else find_argument(bound, "cache") or ()
        first = next(cache_rows.recurrent(cache), None)
        if bound is None or first is None or not has_marks(first):
            return call(*args, **kwargs)
        counted = knows_left and find_argument(bound, "position_ids") is not None
        left_too = not counted or any(map(cache_rows.is_quantized, cache))
        if not has_marks(first, left_too):
            return call(*args, **kwargs)
        return feed_marked(call, bound, cache, how)

    return replacement


def has_marks(layer: Any, left_too: bool = True) -> bool:
    """Whether a recurrent cache announces padding in what comes next. Reads no device."""
    # A cache that was restored without ``__init__`` may lack either. mlx-lm 0.30.4 merges rows
    # to one number, a zero, for all.
    names = MARKS if left_too else MARKS[1:]
    return any(cache_rows.is_counts(getattr(layer, name, None)) for name in names)


def feed_marked(
    call: Callable[..., Any], bound: inspect.BoundArguments, cache: Any, how: str
) -> Any:
    """Feed a batch whose caches announce padding, and count what was fed."""
    marked = [layer for layer in cache_rows.recurrent(cache) if has_marks(layer)]
    shape = find_shape(bound)
    # Engines and hosts announce padding to all caches alike, so one of them is enough to read.
    left, lengths = cache_rows.read_counts([getattr(marked[0], name, None) for name in MARKS])
    rows = len(left or lengths or ())
    if shape is None or shape[0] != rows:  # not these rows' call
        return call(*bound.args, **bound.kwargs)
    length = shape[1]
    padding = left or [0] * rows
    spans = find_spans(padding, lengths or [length] * rows, length)
    starts, stops = (set(side) for side in zip(*spans, strict=True))
    maskable = starts == {0} or stops == {length}
    fed = [start < stop for start, stop in spans]
    if all(span == (0, length) for span in spans):
        out = call(*bound.args, **bound.kwargs)
    # Of Mamba-2 a single position goes to a kernel of its own, which takes no mask.
    elif not any(fed) or (length == 1 and how == MASKED_STEPS):
        with marks_of(cache, None, length):
            out = call_and_hold_states(call, bound, cache, fed)
    elif how == STRETCHES or (how == MASKED_STEPS and maskable):
        counts = spans if how == MASKED_STEPS else None
        with marks_of(cache, counts, length), announced(spans, length, [n > 0 for n in padding]):
            out = call(*bound.args, **bound.kwargs)
    else:
        out = forward_per_row(call, bound, spans, padding)
    for layer in marked:
        set_marks(layer, left, lengths, length)
    return out


@contextmanager
def marks_of(cache: Any, spans: Sequence[Span] | None, length: int) -> Iterator[None]:
    """Have recurrent caches announce this padding, on one side at most, or none, for a while.

    Releases that mask by one side alone take the left one where both are announced, if only as
    zeros.
    """
    import mlx.core as mx

    layers = list(cache_rows.recurrent(cache))
    before = [tuple(getattr(layer, name, None) for name in MARKS) for layer in layers]
    left, lengths = zip(*spans, strict=True) if spans else ((), ())
    for layer in layers:
        # An array for each cache: caches advance theirs in place.
        layer.left_padding = mx.array(left) if any(left) else None
        layer.lengths = mx.array(lengths) if any(end < length for end in lengths) else None
    try:
        yield
    finally:
        for layer, marks in zip(layers, before, strict=True):
            layer.left_padding, layer.lengths = marks


def find_spans(left: Sequence[int], lengths: Sequence[int], length: int) -> list[Span]:
    """Where each row's tokens are among the next positions: the first, and past the last.

    Args:
        left: each row's left padding.
        lengths: how many positions are before the end of each row.
        length: how many positions are fed.
    """
    found = []
    for padding, end in zip(left, lengths, strict=True):
        stop = min(length, max(0, end))
        found.append((min(stop, max(0, padding)), stop))
    return found


def call_and_hold_states(
    call: Callable[..., Any], bound: inspect.BoundArguments, cache: Any, fed: Sequence[bool]
) -> Any:
    """Feed positions; the recurrent states of rows that are not ``fed`` there stay what they were.

    Every state does where the call raises.
    """
    before = [(layer, list(layer.cache)) for layer in cache_rows.recurrent(cache)]
    held: Sequence[bool] = ()  # by a call that raises, none
    try:
        out = call(*bound.args, **bound.kwargs)
        held = fed
    finally:
        for layer, states in before:
            if any(held):
                states = [hold_rows(held, *pair) for pair in zip(layer.cache, states, strict=True)]
            cache_rows.write_rows(layer, states)
    return out


def set_marks(
    layer: Any, left: Sequence[int] | None, lengths: Sequence[int] | None, count: int
) -> None:
    """Have a recurrent cache announce what is left of its padding, and none that is used up.

    Whether the model counted what it was fed, and how, need not be read this way.

    Args:
        layer: the cache.
        left: each row's left padding before the call; None where there was none.
        lengths: likewise, how many positions were before the end of each row.
        count: how many positions were fed.
    """
    import mlx.core as mx

    # An array for each cache: caches advance theirs in place. One that the model dropped stays so.
    if lengths is not None and getattr(layer, "lengths", None) is not None:
        layer.lengths = mx.array([end - count for end in lengths])
    if left is not None and getattr(layer, "left_padding", None) is not None:
        waiting = [padding - count for padding in left]
        layer.left_padding = mx.array(waiting) if max(waiting) > 0 else None


def _of_lm(family: str) -> Iterator[Target]:
    module = f"mlx_lm.models.{family}"
    bodies = ["Model.__call__"]
    if family in MIXERS:
        bodies.append(f"{MIXERS[family]}.__call__")
    how = MASKED_STEPS if family in MAMBA2 else STRETCHES
    factory = functools.partial(call_with_padding, how=how)
    yield Target("mlx-lm", module, "Model.__call__", factory, body=tuple(bodies))
    if family not in MAMBA2:
        yield Target("mlx-lm", module, *{**LAYERS, **MASKED}[family], supports=True)


def _of_vlm(family: str) -> Iterator[Target]:
    # The class that mlx-vlm's plamo2 uses is in plamo2vl.
    module = f"mlx_vlm.models.{'plamo2vl' if family == 'plamo2' else family}.language"
    how = MASKED_STEPS if family in MAMBA2 else STRETCHES
    factory = functools.partial(call_with_padding, how=how, knows_left=family in KNOW_LEFT)
    yield Target("mlx-vlm", module, "LanguageModel.__call__", factory)
    layer = {**LAYERS, **KNOW_LEFT}.get(family)
    if layer is not None:
        yield Target("mlx-vlm", module, *layer, supports=True)


def _scan(distribution: str) -> Target:
    """What ``ssm_update`` of all Mamba-2 layers calls."""
    module = f"{distribution.replace('-', '_')}.models.ssm"
    return Target(distribution, module, "ssm_attn", close_step, supports=True)


PATCH = Patch(
    id="recurrent-padding",
    summary="recurrent layers read a batch's padding as if it were text",
    targets=(
        *(target for family in (*FAMILIES, *MASKED) for target in _of_lm(family)),
        *(target for family in (*FAMILIES, *KNOW_LEFT) for target in _of_vlm(family)),
        *map(_scan, ("mlx-lm", "mlx-vlm")),
    ),
    probe="mlx_patches.probes.recurrent_padding:probe",
    module=__name__,
)
