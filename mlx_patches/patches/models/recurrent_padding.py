"""Recurrent layers read a batch's padding as if it were text.

Why
    A recurrent state cannot forget a token. These families feed every position of a padded
    batch through their recurrence, or know of padding in the first piece of a prompt alone, so
    each row but the longest carries its padding in its state from then on.
How
    A piece of a prompt in which some row has padding is fed row by row, each with its own
    tokens and its own caches, which are then put together as a left-padded batch. Every output
    is joined, and arguments that the patch does not know are passed on. Rows of equal lengths
    and decode steps are fed as ever. The prefill of unequal rows takes as long as they would
    alone.

    Padding that is used up is forgotten, so a decode step knows without the device that it has
    none. A piece whose caches announce padding reads the device once, one with padding twice.
Upstream
    mlx-lm 0.32.x masks some of these families; ``BatchGenerator(prefill_batch_size=1)`` does
    the same as this for all of them, where a host can set it.
Retire when
    The families mask their recurrences.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Factory, Patch, Target
from ..caches import rows as cache_rows
from .row_calls import (
    RowPart,
    Span,
    bind_call,
    find_argument,
    find_shape,
    join_outputs,
    slice_call,
)

FAMILIES = (
    "baichuan_m1",
    "bailing_moe_linear",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "longcat_flash_ngram",
    "mamba",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "plamo2",
    "recurrent_gemma",
    "rwkv7",
)
# These mask padding as ``ArraysCache.make_mask`` says, but for the window of their convolution.
MASKED = ("qwen3_5",)
# These know of left padding where they are told the positions of a prompt, and not of right
# padding behind tokens that they were fed before.
KNOW_LEFT = ("qwen3_5", "qwen3_5_moe", "zaya1_vl")


# Right in the releases whose engine pads on the left alone: the mixers tell them apart.
MIXERS = {
    "qwen3_5": "GatedDeltaNet",
    "granitemoehybrid": "GraniteMoeHybridMamba2Mixer",
    "mamba2": "Mamba2Block",
    "nemotron_h": "NemotronHMamba2Mixer",
    "plamo2": "Mamba",
}


def call_padded_rows_apart(
    call: Callable[..., Any], knows_left: bool = False
) -> Callable[..., Any]:
    """The model's call, which feeds rows one at a time where some of them have padding.

    With ``knows_left`` not those with left padding whose positions come with them, where the
    release counts that padding itself. It does not where keys and values are quantized.
    """
    own = inspect.unwrap(call).__globals__
    knows_left &= any(name.endswith("left_padding_info") for name in own)
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
        return feed_marked(call, bound, cache)

    return replacement


def has_marks(layer: Any, left_too: bool = True) -> bool:
    """Whether a recurrent cache announces padding in what comes next. Reads no device."""
    # A cache that was restored without ``__init__`` may lack either. mlx-lm 0.30.4 merges rows
    # to one number, a zero, for all.
    names = ("left_padding", "lengths") if left_too else ("lengths",)
    return any(cache_rows.is_counts(getattr(layer, name, None)) for name in names)


def feed_marked(call: Callable[..., Any], bound: inspect.BoundArguments, cache: Any) -> Any:
    """Feed a batch whose caches announce padding, and count what was fed."""
    marked = [layer for layer in cache_rows.recurrent(cache) if has_marks(layer)]
    shape = find_shape(bound)
    # Engines and hosts announce padding to all caches alike, so one of them is enough to read.
    left, lengths = cache_rows.read_counts(
        [getattr(marked[0], name, None) for name in ("left_padding", "lengths")]
    )
    rows = len(left or lengths or ())
    if shape is None or shape[0] != rows:  # not these rows' call
        return call(*bound.args, **bound.kwargs)
    length = shape[1]
    spans = find_spans(left or [0] * rows, lengths or [length] * rows, length)
    if all(span == (0, length) for span in spans):
        out = call(*bound.args, **bound.kwargs)
    elif all(start == stop for start, stop in spans):
        out = call_without_states(call, bound, cache)
    else:
        out = forward_per_row(call, bound, spans, left or [0] * rows)
    for layer in marked:
        set_marks(layer, left, lengths, length)
    return out


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


def call_without_states(call: Callable[..., Any], bound: inspect.BoundArguments, cache: Any) -> Any:
    """Feed positions that hold no token of any row: recurrent states stay what they were."""
    before = [(layer, list(layer.cache)) for layer in cache_rows.recurrent(cache)]
    try:
        return call(*bound.args, **bound.kwargs)
    finally:
        for layer, states in before:
            cache_rows.write_rows(layer, states)


def forward_per_row(
    call: Callable[..., Any],
    bound: inspect.BoundArguments,
    spans: Sequence[Span],
    left: Sequence[int],
) -> Any:
    """Feed each row by itself; what the batch's call would give, with zeros at padding.

    The batch's caches are written last, so that a call that raises leaves them as they were.

    Args:
        call: the model's own.
        bound: its arguments for the batch.
        spans: where each row's tokens are.
        left: how many positions each row's first token is away; a row for which it is positive
            has been fed nothing yet.
    """
    model, cache, shape = bound.args[0], find_argument(bound, "cache"), find_shape(bound)
    empty = model.make_cache() if hasattr(model, "make_cache") else ()
    if shape is None or len(empty) != len(cache):  # a host's own caches: of what kind is a row's?
        return call(*bound.args, **bound.kwargs)
    layers = cache_rows.hold_counts(cache)
    outputs: list[Any] = []
    caches: list[list[Any]] = []
    for row, span in enumerate(spans):
        own = [
            cache_rows.copy_empty(layer, new)
            if left[row] > 0
            else cache_rows.slice_row(layer, row, new)
            for layer, new in zip(layers, empty, strict=True)
        ]
        caches.append(own)
        if span[0] == span[1]:
            outputs.append(None)
            continue
        one = slice_call(bound, RowPart(row, shape, span, find_keys(layers, row, shape, span)), own)
        outputs.append(call(*one.args, **one.kwargs))
    waiting = [max(0, padding - shape[1]) for padding in left]
    joined = [
        cache_rows.join_rows(layer, [own[index] for own in caches], waiting)
        for index, layer in enumerate(cache)
    ]
    for layer, held in zip(cache, joined, strict=True):
        cache_rows.write_rows(layer, held)
    return join_outputs(outputs, spans, shape)


def find_keys(
    layers: Sequence[Any], row: int, shape: tuple[int, int], span: Span
) -> tuple[int, int] | None:
    """How many keys a batch's masks have, and which is the row's first; None where unknown.

    Args:
        layers: the batch's caches, with their counts in host memory.
        row: which.
        shape: rows and positions of the call.
        span: where the row's tokens are.
    """
    for layer in cache_rows.flatten_caches(layers):
        before = None if hasattr(layer, "max_size") else getattr(layer, "_idx", None)
        if before is not None and getattr(layer.offset, "shape", None) == (shape[0],):
            return before + shape[1], before + span[0] - max(0, int(layer.offset[row]))
    return None


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


def _of_lm(family: str) -> Target:
    bodies = ["Model.__call__"]
    if family in MIXERS:
        bodies.append(f"{MIXERS[family]}.__call__")
    return Target(
        "mlx-lm",
        f"mlx_lm.models.{family}",
        "Model.__call__",
        call_padded_rows_apart,
        body=tuple(bodies),
    )


def _of_vlm(family: str, factory: Factory) -> Target:
    return Target("mlx-vlm", f"mlx_vlm.models.{family}.language", "LanguageModel.__call__", factory)


PATCH = Patch(
    id="recurrent-padding",
    summary="recurrent layers read a batch's padding as if it were text",
    targets=(
        *map(_of_lm, (*FAMILIES, *MASKED)),
        # The class that mlx-vlm's plamo2 uses is in plamo2vl.
        *(_of_vlm("plamo2vl" if f == "plamo2" else f, call_padded_rows_apart) for f in FAMILIES),
        *(
            _of_vlm(family, functools.partial(call_padded_rows_apart, knows_left=True))
            for family in KNOW_LEFT
        ),
    ),
    probe="mlx_patches.probes.recurrent_padding:probe",
    module=__name__,
)
