"""Each row's offset, for models that ask a cache for one number."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...caches import rows as cache_rows
from ...caches.offset_view import with_offset
from ...parts import with_parts
from ..row_caches import counts_rows
from ..row_calls import TOKENS, bind_call, find_argument, find_extra_name, find_shape

Prepare = Callable[[inspect.BoundArguments, "RowOffset", tuple[int, int]], Any]
Factory = Callable[[Callable[..., Any]], Callable[..., Any]]
# What a piece of text comes with; an image comes with more.
TEXT = (*TOKENS[:3], "cache", "rope_deltas", "logits_to_keep", "n_to_process")
# What ``prepare`` answers of a batch whose rows have to go one by one.
REFUSED = object()


class RowOffset(int):
    """Where a batch is, as a number: how many positions of keys its caches hold, with padding.

    It stands for ``cache.offset``, an array, where a model wants a number. Beside it is what a
    row's own positions are made of. Nothing is read from the device.

    Args:
        columns: the number.
        rows: each row's number of tokens (rows,), negative in what is left of its padding.
    """

    rows: Any

    def __new__(cls, columns: int, rows: Any) -> RowOffset:
        """See the class."""
        self = super().__new__(cls, columns)
        self.rows, self._made = rows, {}
        return self

    _made: dict[Any, Any]

    def once(self, make: Callable[..., Any], *args: Any) -> Any:
        """``make(self, *args)``, made once a forward: all layers have the same offsets."""
        key = (make, *args)
        if key not in self._made:
            self._made[key] = make(self, *args)
        return self._made[key]

    def positions(self, length: int) -> Any:
        """Each row's next positions (rows, length); 0 for padding, which has none."""
        return self.once(_make_positions, length)


def _make_positions(offset: RowOffset, length: int) -> Any:
    import mlx.core as mx

    return mx.maximum(offset.rows[:, None] + mx.arange(length), 0)


def read_offset(cache: Iterable[Any] | None) -> RowOffset | None:
    """The offsets of a batch's rows; None of anything but a batch of plain caches."""
    layers = list(cache_rows.flatten_caches(cache or ()))
    first = next((layer for layer in layers if counts_rows(layer)), None)
    if first is None or not all(hasattr(layer, "update_and_fetch") for layer in layers):
        return None
    columns = getattr(first, "_offset", getattr(first, "_idx", None))
    if columns is None:
        return None
    # Another handle: the caches advance theirs in place.
    return RowOffset(columns, first.offset.astype(first.offset.dtype))


def with_rows(prepare: Prepare, rest: Factory = lambda call: call) -> Factory:
    """A factory of a model's call that lets ``prepare`` change a batch's arguments.

    Args:
        prepare: changes the bound call; is given the rows' offsets, and rows and length. It
            answers ``REFUSED``, and has changed nothing, where the call is not for it.
        rest: of calls without a batch's caches, of such as the model does not take, and of
            those refused. The release's own unless given.
    """

    def factory(call: Callable[..., Any]) -> Callable[..., Any]:
        signature, other = inspect.signature(call), rest(call)

        @functools.wraps(call)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            bound = bind_call(signature, args, kwargs)
            offset = None if bound is None else read_offset(find_argument(bound, "cache"))
            shape = None if bound is None else find_shape(bound)
            if (
                bound is None
                or offset is None
                or shape is None
                or shape[1] == 0
                or shape[0] != offset.rows.shape[0]
                or prepare(bound, offset, shape) is REFUSED
            ):
                return other(*args, **kwargs)
            return call(*bound.args, **bound.kwargs)

        return replacement

    return factory


def put_argument(bound: inspect.BoundArguments, name: str, value: Any) -> None:
    """Give a call an argument by name, among its ``**kwargs`` where it has no other place."""
    extra = find_extra_name(bound.signature)
    if name in bound.signature.parameters or not extra:
        bound.arguments[name] = value
    else:
        bound.arguments[extra] = {**bound.arguments.get(extra, {}), name: value}


def put_model(bound: inspect.BoundArguments, model: Any) -> None:
    """Have another model take the call."""
    bound.arguments[next(iter(bound.signature.parameters))] = model


def put_mask(bound: inspect.BoundArguments, length: int) -> None:
    """Have a call without a mask get the first cache's, which leaves padding out.

    Some releases ask the list of caches for a mask, which has none to give.
    """
    if find_argument(bound, "mask") is None:
        cache = find_argument(bound, "cache")
        put_argument(bound, "mask", cache[0].make_mask(length))


def put_views(bound: inspect.BoundArguments, offset: int) -> None:
    """Have a model see its caches with a number for their offset."""
    # A plain one: ``arange`` takes no class of ours.
    views = [with_offset(layer, int(offset)) for layer in find_argument(bound, "cache")]
    put_argument(bound, "cache", views)


def is_text(bound: inspect.BoundArguments) -> bool:
    """Whether a call has token ids and nothing of an image, nor a mask of the host's."""
    _, *names = bound.arguments
    extra = find_extra_name(bound.signature)
    given = {name: bound.arguments[name] for name in names if name != extra}
    given |= bound.arguments.get(extra, {})
    return all(value is None or name in TEXT for name, value in given.items())


def start_deltas(bound: inspect.BoundArguments, offset: RowOffset, rows: int) -> Any:
    """The rope deltas (rows, 1) of rows that are fed text: 0 for those that begin with it."""
    import mlx.core as mx

    known = mx.broadcast_to(mx.array(given_deltas(bound, rows), mx.int32), (rows, 1))
    return mx.where(offset.rows[:, None] > 0, known, 0)


def given_deltas(bound: inspect.BoundArguments, rows: int) -> Any:
    """The rope deltas of a call's rows, (rows, 1) or what fits it; 0 where none are known.

    The host's before those that the model keeps.
    """
    deltas = find_argument(bound, "rope_deltas")
    if deltas is None:
        deltas = getattr(bound.args[0], "_rope_deltas", None)
    if not getattr(deltas, "ndim", 0):
        return 0 if deltas is None else deltas
    deltas = deltas.reshape(-1, 1)
    return deltas[:rows] if deltas.shape[0] >= rows else deltas[:1]


def put_layers(bound: inspect.BoundArguments, name: str, layers: Sequence[Any]) -> None:
    """Have a copy of the model take the call, whose decoder has other layers."""
    model = bound.args[0]
    put_model(bound, with_parts(model, model=with_parts(model.model, **{name: list(layers)})))


class RowRope:
    """A rotary embedding that rotates each row from its own offset on, whatever it is given."""

    def __init__(self, rope: Callable[..., Any], rows: Any):
        self.rope, self.rows = rope, rows

    def __call__(self, x: Any, offset: Any = 0) -> Any:
        """``x`` (rows, heads, length, width), rotated."""
        return self.rope(x, offset=self.rows)
