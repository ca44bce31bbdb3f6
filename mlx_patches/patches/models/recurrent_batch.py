"""Recurrent layers in a padded batch: a row's state stays where the row has no token.

The model's call announces the batch's padding with ``announced``. The layers' own code runs, and is
given what makes padding harmless:

- A Mamba-2 layer masks its convolution itself. Its step is closed to zero at padding, where
  the state then neither decays nor takes anything in.
- Other recurrences run stretch by stretch: the positions between which no row begins or ends.
  After each stretch, rows without a token in it get their states back. Most of them go token
  by token anyway, so this costs them nothing.
- Of a convolution of two tokens inside an attention layer, the window is taken again at each
  row's own end.

No layer is fed row by row, and none does anything where no padding was announced.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from ..caches import rows as cache_rows
from .row_calls import Span, bind_call, find_argument


class Padding(NamedTuple):
    """Where the rows of a batch have tokens among the positions of one call.

    Args:
        spans: each row's first token, and past its last.
        length: how many positions there are.
        unfed: the rows that were fed nothing before.
        held: True where a row has a token, (rows, length, 1) of bool.
    """

    spans: tuple[Span, ...]
    length: int
    unfed: tuple[bool, ...]
    held: Any


_ANNOUNCED: ContextVar[Padding | None] = ContextVar("mlx_patches_padding", default=None)


@contextmanager
def announced(spans: Sequence[Span], length: int, unfed: Sequence[bool]) -> Iterator[None]:
    """Have the layers that are called meanwhile know of a batch's padding."""
    import mlx.core as mx

    first, last = (mx.array(side)[:, None, None] for side in zip(*spans, strict=True))
    at = mx.arange(length)[:, None]
    held = (at >= first) & (at < last)
    token = _ANNOUNCED.set(Padding(tuple(spans), length, tuple(unfed), held))
    try:
        yield
    finally:
        _ANNOUNCED.reset(token)


# -- Mamba-2 -------------------------------------------------------------------------------------


def close_step(scan: Callable[..., Any]) -> Callable[..., Any]:
    """A selective scan whose step is zero at padding: exp(0) keeps the state, and adds nothing.

    The step is clipped by ``time_step_limit``, which is made an array (rows, length, 1). Mask
    and lengths say the same less exactly, and are left out.
    """
    signature = inspect.signature(scan)

    @functools.wraps(scan)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        padding = _ANNOUNCED.get()
        if padding is None:
            return scan(*args, **kwargs)
        import mlx.core as mx

        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        given["time_step_limit"] = tuple(
            mx.where(padding.held, limit, 0.0) for limit in given["time_step_limit"]
        )
        given.update({name: None for name in ("mask", "lengths") if name in given})
        return scan(*bound.args, **bound.kwargs)

    return replacement


# -- stretch by stretch --------------------------------------------------------------------------


def find_stretches(padding: Padding) -> list[tuple[int, int, list[bool]]]:
    """The positions between which no row begins or ends, and which rows have tokens there."""
    ends = {end for start, stop in padding.spans if start < stop for end in (start, stop)}
    bounds = sorted({0, padding.length, *ends})
    return [
        (start, stop, [first <= start and stop <= last for first, last in padding.spans])
        for start, stop in itertools.pairwise(bounds)
    ]


class Fed:
    """Stands for an attention cache that is not empty."""

    def empty(self) -> bool:
        """No."""
        return False


def call_in_stretches(
    call: Callable[..., Any], begins_anew: bool = False, asks_keys: bool = False
) -> Callable[..., Any]:
    """A recurrent layer's call, (rows, length, ...) to the same, in stretches.

    Args:
        call: the layer's own.
        begins_anew: without a state it does something else at its first token than with one
            that is zero.
        asks_keys: it asks the attention cache in front of its own whether there is a state,
            and nothing else.
    """
    signature = inspect.signature(call)

    @functools.wraps(call)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        padding = _ANNOUNCED.get()
        if padding is None:
            return call(*args, **kwargs)
        bound = bind_call(signature, args, kwargs)
        cache: Any = None if bound is None else find_argument(bound, "cache")
        if asks_keys and cache is not None:
            cache = cache[1]
        if bound is None or not cache_rows.is_recurrent(cache):
            return call(*args, **kwargs)
        if asks_keys:
            bound.arguments["cache"] = (Fed(), cache)
        outputs = []
        for start, stop, active in find_stretches(padding):
            own = slice_tokens(bound, padding, start, stop)
            before = list(cache.cache)
            out = call(*own.args, **own.kwargs)
            starting = find_starting(padding, start) if begins_anew else ()
            if any(starting) and any(state is not None for state in before):
                after, cache.cache[:] = list(cache.cache), [None] * len(before)
                out = pick_rows(starting, call(*own.args, **own.kwargs), out)
                cache.cache[:] = [
                    pick_rows(starting, *pair) for pair in zip(cache.cache, after, strict=True)
                ]
            cache.cache[:] = [
                hold_rows(active, *pair) for pair in zip(cache.cache, before, strict=True)
            ]
            outputs.append(out)
        return join_stretches(outputs)

    return replacement


def find_starting(padding: Padding, start: int) -> list[bool]:
    """Which rows get their first token ever at a position."""
    return [
        unfed and first == start < last
        for unfed, (first, last) in zip(padding.unfed, padding.spans, strict=True)
    ]


def slice_tokens(
    bound: inspect.BoundArguments, padding: Padding, start: int, stop: int
) -> inspect.BoundArguments:
    """A layer's call for some of its positions: of each array (rows, length, ...) this part."""
    shape = (len(padding.spans), padding.length)
    own = inspect.BoundArguments(bound.signature, bound.arguments.copy())
    for name, value in own.arguments.items():
        if getattr(value, "shape", ())[:2] == shape:
            own.arguments[name] = value[:, start:stop]
    return own


def pick_rows(chosen: Sequence[bool], one: Any, other: Any) -> Any:
    """The chosen rows of one array (rows, ...), and the rest of another."""
    import mlx.core as mx

    return mx.where(mx.array(chosen).reshape(-1, *[1] * (one.ndim - 1)), one, other)


def hold_rows(active: Sequence[bool], after: Any, before: Any) -> Any:
    """A state after a stretch, where rows that had no token in it keep theirs."""
    if all(active) or after is None or after is before:
        return after
    import mlx.core as mx

    old = mx.zeros_like(after) if before is None else cache_rows.pad_state(before, after)
    return pick_rows(active, after, old)


def join_stretches(outputs: Sequence[Any]) -> Any:
    """The outputs of stretches, arrays or tuples of them, as one."""
    import mlx.core as mx

    if isinstance(outputs[0], tuple):
        return tuple(map(join_stretches, zip(*outputs, strict=True)))
    return mx.concatenate(list(outputs), axis=1)


def scan_in_stretches(
    scan: Callable[..., Any], q: Any, k: Any, v: Any, g: Any, scale: float, h: Any = None
) -> Any:
    """A gated linear attention's recurrence, heads before positions, in stretches."""
    padding = _ANNOUNCED.get()
    if padding is None:
        return scan(q, k, v, g, scale, h)
    import mlx.core as mx

    outputs = []
    for start, stop, active in find_stretches(padding):
        part = (one[:, :, start:stop] for one in (q, k, v))
        out, after = scan(*part, g, scale, h)
        h = hold_rows(active, after, h)
        outputs.append(out)
    return mx.concatenate(outputs, axis=2), h


# -- a window inside an attention layer ----------------------------------------------------------


class NoKeys:
    """An attention cache that keeps nothing."""

    offset = 0

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """The keys and values themselves."""
        return keys, values


def attend_with_window(
    call: Callable[..., Any], layer: Any, x: Any, mask: Any = None, cache: Any = None
) -> Any:
    """An attention layer's output where its cache has the last token's keys and values before
    their convolution, which is of two tokens.

    Padding is zeroed: its keys are then those before the first token. The layer is called once
    more with each row's last token alone, for what it writes; no output of that is evaluated.
    """
    padding = _ANNOUNCED.get()
    if padding is None:
        return call(layer, x, mask, cache)
    import mlx.core as mx

    states = list(cache[0].cache)
    out = call(layer, mx.where(padding.held, x, 0), mask, cache)
    ends = mx.array([max(stop - 1, 0) for _, stop in padding.spans])
    last = mx.take_along_axis(x, ends[:, None, None], axis=1)
    window: list[Any] = [None] * len(states)
    call(layer, last, None, (window, NoKeys()))
    some = [start < stop for start, stop in padding.spans]
    cache[0].cache[:] = [hold_rows(some, *pair) for pair in zip(window, states, strict=True)]
    return out
