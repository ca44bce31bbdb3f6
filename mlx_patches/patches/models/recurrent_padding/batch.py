"""Recurrent layers in a padded batch: a row's state changes only at its tokens.

The model's call announces the batch's padding with ``announce_padding``. The layers' own code then
runs with arguments that make padding harmless; no layer is fed row by row. Without announced
padding, nothing changes.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

from ....core.arrays import mx
from ..._shared import rows as cache_rows
from ..._shared.row_calls import Span, by_name, find_argument


class Padding(NamedTuple):
    """Which positions of a call are tokens of the rows of a batch.

    Args:
        spans: each row's tokens, as (first, one past the last).
        length: the number of positions.
        held: (rows, length, 1) of bool, True at a row's tokens.
    """

    spans: tuple[Span, ...]
    length: int
    held: Any


_ANNOUNCED: ContextVar[Padding | None] = ContextVar("mlx_patches_padding", default=None)


@contextmanager
def announce_padding(spans: Sequence[Span], length: int) -> Iterator[None]:
    """Announce a batch's padding to the layers called in this context."""
    first, last = (mx.array(side)[:, None, None] for side in zip(*spans, strict=True))
    at = mx.arange(length)[:, None]
    held = (at >= first) & (at < last)
    token = _ANNOUNCED.set(Padding(tuple(spans), length, held))
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)


def is_announced(*args: Any, **kwargs: Any) -> bool:
    """Whether a running model's call has announced padding, for any arguments."""
    return _ANNOUNCED.get() is not None


@by_name
def close_step(scan: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """A selective scan with a time step of zero at padding, which keeps the state.

    A Mamba-2 layer masks its convolution itself. The scan clips the step to ``time_step_limit``,
    which becomes an array (rows, length, 1). ``mask`` and ``lengths`` describe the same padding
    less exactly, and are dropped.
    """
    padding = _ANNOUNCED.get()
    if padding is not None:
        bound.apply_defaults()
        given = bound.arguments
        given["time_step_limit"] = tuple(
            mx.where(padding.held, limit, 0.0) for limit in given["time_step_limit"]
        )
        given.update({name: None for name in ("mask", "lengths") if name in given})
    return scan(*bound.args, **bound.kwargs)


def find_stretches(padding: Padding) -> list[tuple[int, int, list[bool]]]:
    """The ranges (start, stop) in which no row begins or ends, and whether each row has tokens."""
    ends = {end for start, stop in padding.spans if start < stop for end in (start, stop)}
    bounds = sorted({0, padding.length, *ends})
    return [
        (start, stop, [first <= start and stop <= last for first, last in padding.spans])
        for start, stop in itertools.pairwise(bounds)
    ]


def run_in_stretches(
    call: Callable[..., Any], bound: inspect.BoundArguments, checks_keys: bool = False
) -> Any:
    """A recurrent layer's call on arrays (rows, length, ...), run in stretches.

    After each stretch, rows without a token in it get their previous states back. Most of these
    layers run token by token anyway, so stretches cost nothing. ``checks_keys``: whether the layer
    gets a pair of caches, and calls ``empty()`` of the first, an attention cache, to check whether
    the second has a state.
    """
    padding, cache = _ANNOUNCED.get(), find_argument(bound, "cache")
    if checks_keys and cache is not None:
        cache = cache[1]
    if padding is None or not cache_rows.is_recurrent(cache):
        return call(*bound.args, **bound.kwargs)
    if checks_keys:
        bound.arguments["cache"] = (SimpleNamespace(empty=lambda: False), cache)
    outputs = []
    for start, stop, active in find_stretches(padding):
        own = slice_tokens(bound, padding, start, stop)
        before = list(cache.cache)
        outputs.append(call(*own.args, **own.kwargs))
        cache.cache[:] = [
            hold_rows(active, *pair) for pair in zip(cache.cache, before, strict=True)
        ]
    return join_stretches(outputs)


call_in_stretches = by_name(run_in_stretches)
call_with_keys_in_stretches = by_name(functools.partial(run_in_stretches, checks_keys=True))


def slice_tokens(
    bound: inspect.BoundArguments, padding: Padding, start: int, stop: int
) -> inspect.BoundArguments:
    """A layer's call for the positions from ``start`` to ``stop`` of its (rows, length, ...)."""
    shape = (len(padding.spans), padding.length)
    own = inspect.BoundArguments(bound.signature, bound.arguments.copy())
    for name, value in own.arguments.items():
        if getattr(value, "shape", ())[:2] == shape:
            own.arguments[name] = value[:, start:stop]
    return own


def pick_rows(chosen: Any, one: Any, other: Any) -> Any:
    """An array (rows, ...) of the ``chosen`` rows (bool) of ``one``, and of ``other``'s others."""
    return mx.where(mx.array(chosen).reshape(-1, *[1] * (one.ndim - 1)), one, other)


def hold_rows(active: Sequence[bool], after: Any, before: Any) -> Any:
    """The state after a stretch; rows without a token in it keep the state from before."""
    if all(active) or after is None or after is before:
        return after
    old = mx.zeros_like(after) if before is None else cache_rows.pad_state(before, after)
    return pick_rows(active, after, old)


def join_stretches(outputs: Sequence[Any]) -> Any:
    """Join the stretches' outputs, arrays or tuples of arrays, along the positions."""
    if isinstance(outputs[0], tuple):
        return tuple(map(join_stretches, zip(*outputs, strict=True)))
    return mx.concatenate(list(outputs), axis=1)


def scan_in_stretches(
    scan: Callable[..., Any], q: Any, k: Any, v: Any, g: Any, scale: float, h: Any = None
) -> Any:
    """A gated linear attention's recurrence in stretches; arrays are (rows, heads, length, ...)."""
    padding = _ANNOUNCED.get()
    if padding is None:
        return scan(q, k, v, g, scale, h)
    outputs = []
    for start, stop, active in find_stretches(padding):
        part = (one[:, :, start:stop] for one in (q, k, v))
        out, after = scan(*part, g, scale, h)
        h = hold_rows(active, after, h)
        outputs.append(out)
    return mx.concatenate(outputs, axis=2), h


# The list of states that a layer wrote when every row had had a token.
FED = "_mlx_patches_fed"


def call_from_start(call: Callable[..., Any]) -> Callable[..., Any]:
    """Factory of a recurrent layer's call in stretches, in which rows start as in a solo run."""
    signature = inspect.signature(call)
    stretched = call_in_stretches(start_rows(call))

    @functools.wraps(call)
    def call_layer(*args: Any, **kwargs: Any) -> Any:
        out = stretched(*args, **kwargs)
        cache: Any = find_argument(signature.bind(*args, **kwargs), "cache")
        padding = _ANNOUNCED.get()
        if cache_rows.is_recurrent(cache) and (
            padding is None or all(start < stop for start, stop in padding.spans)
        ):
            vars(cache)[FED] = cache.cache
        return out

    return call_layer


@by_name
def start_rows(call: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """A layer's call, in which rows with states of zeros start like rows without states.

    For layers whose output for the first token depends on whether the state is missing or zero. A
    row that joins a batch before its first token has a state of zeros; it gets the output and the
    states of a second call without states.
    """
    cache = find_argument(bound, "cache")
    is_waiting = cache_rows.is_recurrent(cache) and not is_fed(cache)
    unfed = find_unfed(cache.cache) if is_waiting else None
    out = call(*bound.args, **bound.kwargs)
    if unfed is None:
        return out
    after, cache.cache[:] = list(cache.cache), [None] * len(cache.cache)
    out = pick_rows(unfed, call(*bound.args, **bound.kwargs), out)
    cache.cache[:] = [pick_rows(unfed, *pair) for pair in zip(cache.cache, after, strict=True)]
    return out


def may_start_rows(layer: Any, x: Any, cache: Any = None, *args: Any, **kwargs: Any) -> bool:
    """Whether a row may have its first token in this call, or padding, without a device read."""
    return is_announced() or (cache_rows.is_recurrent(cache) and not is_fed(cache))


def is_fed(cache: Any) -> bool:
    """Whether every row of a recurrent cache is known to have had a token, without a device read.

    When rows join or leave, the cache gets another list of states.
    """
    return vars(cache).get(FED) is cache.cache


def find_unfed(states: Sequence[Any]) -> Any:
    """An array (rows,) of bool, True for rows whose states are all zeros; None without states."""
    written = [state for state in states if state is not None]
    if not written:
        return None
    return mx.stack([~state.reshape(state.shape[0], -1).any(axis=1) for state in written]).all(
        axis=0
    )


# An attention cache that stores nothing.
_NO_KEYS = SimpleNamespace(offset=0, update_and_fetch=lambda keys, values: (keys, values))


def attend_with_window(
    call: Callable[..., Any], layer: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """The output of an attention layer that convolves keys and values over two tokens.

    Its cache holds the last token's keys and values from before the convolution. Padding is
    zeroed, so a row's first token is convolved as if nothing came before it. The layer is called
    a second time with only each row's last token, for the window that it writes; the output of
    that call is never evaluated.
    """
    padding = _ANNOUNCED.get()
    if padding is None:
        return call(layer, x, mask, cache)
    states = list(cache[0].cache)
    out = call(layer, mx.where(padding.held, x, 0), mask, cache)
    ends = mx.array([max(stop - 1, 0) for _, stop in padding.spans])
    last = mx.take_along_axis(x, ends[:, None, None], axis=1)
    window: list[Any] = [None] * len(states)
    call(layer, last, None, (window, _NO_KEYS))
    some = [start < stop for start, stop in padding.spans]
    cache[0].cache[:] = [hold_rows(some, *pair) for pair in zip(window, states, strict=True)]
    return out
