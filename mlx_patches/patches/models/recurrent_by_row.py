"""A padded batch of a recurrent family fed row by row: the fallback of ``recurrent_padding``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from ..caches import rows as cache_rows
from .row_calls import RowPart, Span, find_argument, find_shape, join_outputs, slice_call


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
