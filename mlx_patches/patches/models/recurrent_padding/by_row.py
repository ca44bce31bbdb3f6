"""Feed a padded batch of a recurrent family row by row: the fallback of ``recurrent_padding``."""

import inspect
from collections.abc import Sequence
from typing import Any

from ....core.verbs import Function
from ..._shared import rows as cache_rows
from ..._shared.row_calls import RowPart, Span, find_argument, find_shape, join_outputs, slice_call


def forward_per_row(
    call: Function, bound: inspect.BoundArguments, spans: Sequence[Span], left: Sequence[int]
) -> Any:
    """Feed the rows one by one, and return the output of the batch, with zeros at padding.

    The batch's caches are written last, so a call that raises leaves them unchanged.
    """
    model, cache, shape = bound.args[0], find_argument(bound, "cache"), find_shape(bound)
    empty = model.make_cache() if hasattr(model, "make_cache") else ()
    # With a host's own caches the class of a row's cache is unknown.
    if shape is None or len(empty) != len(cache):
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
    dropped = [shape[1] - end for _, end in spans]
    for layer, held in zip(cache, joined, strict=True):
        cache_rows.write_rows(layer, held, dropped)
    return join_outputs(outputs, spans, shape)


def find_keys(
    layers: Sequence[Any], row: int, shape: tuple[int, int], span: Span
) -> tuple[int, int] | None:
    """The number of keys in a batch's masks and the index of the row's first; None if unknown."""
    for layer in cache_rows.flatten_caches(layers):
        before = None if hasattr(layer, "max_size") else getattr(layer, "_idx", None)
        if before is not None and getattr(layer.offset, "shape", None) == (shape[0],):
            return before + shape[1], before + span[0] - max(0, int(layer.offset[row]))
    return None
