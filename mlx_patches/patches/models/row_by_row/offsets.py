"""Each row's offset, for models that use a cache's offset as a single number."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from ....core.arrays import mx
from ..._shared import rows as cache_rows
from ..._shared.parts import with_offset, with_parts
from ..._shared.row_caches import counts_rows
from ..._shared.row_calls import TOKENS, bind_call, find_argument, find_extra_name, find_shape

Factory = Callable[[Callable[..., Any]], Callable[..., Any]]
# The arguments of a call with only text; a call with an image has more.
TEXT = (*TOKENS[:3], "cache", "rope_deltas", "logits_to_keep", "n_to_process")
# Engines compute these for every prompt, with or without an image.
EMBEDDINGS = "inputs_embeds"
# ``prepare`` returns this for a batch whose rows must be fed one by one.
REFUSED = object()


class RowOffset(int):
    """A batch's offset as a number: the number of key positions in its caches, with padding.

    It replaces the array ``cache.offset`` for a model that needs a number, and carries each row's
    offset. The device is not read.

    Args:
        columns: the number.
        rows: each row's number of tokens (rows,), negative while padding is still to come.
    """

    rows: Any

    def __new__(cls, columns: int, rows: Any) -> "RowOffset":
        self = super().__new__(cls, columns)
        self.rows, self._made = rows, {}
        return self

    _made: dict[Any, Any]

    def once(self, make: Callable[..., Any], *args: Any) -> Any:
        """``make(self, *args)``, computed once per forward pass for all layers."""
        key = (make, *args)
        if key not in self._made:
            self._made[key] = make(self, *args)
        return self._made[key]

    def positions(self, length: int) -> Any:
        """Each row's next positions (rows, length); 0 for padding."""
        return self.once(count_positions, length)


def count_positions(offset: RowOffset, length: int, deltas: Any = 0) -> Any:
    """Each row's next positions (rows, length), plus the deltas (rows, 1)."""
    return mx.maximum(offset.rows[:, None] + mx.arange(length) + deltas, 0)


def read_offset(cache: Iterable[Any] | None) -> RowOffset | None:
    """The offsets of a batch's rows; None unless all caches are attention caches of a batch."""
    layers = list(cache_rows.flatten_caches(cache or ()))
    first = next((layer for layer in layers if counts_rows(layer)), None)
    if first is None or not all(hasattr(layer, "update_and_fetch") for layer in layers):
        return None
    columns = getattr(first, "_offset", getattr(first, "_idx", None))
    if columns is None:
        return None
    # A new array object: the caches update theirs in place.
    return RowOffset(columns, first.offset.astype(first.offset.dtype))


class BatchCall:
    """A call of a family's model with a batch's caches, whose arguments can be changed.

    Args:
        bound: the call's arguments.
        offset: the rows' offsets.
        shape: the number of rows, and that of positions.
    """

    def __init__(self, bound: inspect.BoundArguments, offset: RowOffset, shape: tuple[int, int]):
        self.bound, self.offset, self.shape = bound, offset, shape
        self.rows, self.length = shape

    @property
    def model(self) -> Any:
        return self.bound.args[0]

    def get(self, name: str) -> Any:
        return find_argument(self.bound, name)

    def put(self, name: str, value: Any) -> None:
        """Set an argument by name, in the ``**kwargs`` if no parameter has the name."""
        extra, arguments = find_extra_name(self.bound.signature), self.bound.arguments
        if name in self.bound.signature.parameters or not extra:
            arguments[name] = value
        else:
            arguments[extra] = {**arguments.get(extra, {}), name: value}

    def put_model(self, **parts: Any) -> None:
        first = next(iter(self.bound.signature.parameters))
        self.bound.arguments[first] = with_parts(self.model, **parts)

    def put_decoder(self, **parts: Any) -> None:
        self.put_model(model=with_parts(self.model.model, **parts))

    def put_mask(self) -> None:
        """Set the mask of a call without one to the first cache's, which hides padding.

        Some releases look for ``make_mask`` on the list of caches, which has none.
        """
        if self.get("mask") is None:
            self.put("mask", self.get("cache")[0].make_mask(self.length))

    def put_views(self) -> None:
        """Replace the caches with views whose offset is a number."""
        # A plain int: ``arange`` accepts no subclass.
        views = [with_offset(layer, int(self.offset)) for layer in self.get("cache")]
        self.put("cache", views)

    def names(self) -> set[str]:
        """The names of the arguments that are not None, except the model."""
        _, *names = self.bound.arguments
        extra = find_extra_name(self.bound.signature)
        given = {name: self.bound.arguments[name] for name in names if name != extra}
        given |= self.bound.arguments.get(extra, {})
        return {name for name, value in given.items() if value is not None}

    def is_text(self, *more: str) -> bool:
        """Whether a call is only text: without arguments of an image or a mask of the host.

        Embeddings are passed for both. But each call of an image has what its positions depend on:
        engines pass everything that the processor returned, which is only token ids for text.
        """
        return self.names().issubset((*TEXT, EMBEDDINGS, *more))

    def start_deltas(self) -> Any:
        """The rope deltas (rows, 1) of rows that are fed text; 0 for rows that begin with it."""
        known = mx.broadcast_to(mx.array(self.find_deltas(), mx.int32), (self.rows, 1))
        return mx.where(self.offset.rows[:, None] > 0, known, 0)

    def find_deltas(self) -> Any:
        """The rope deltas: (rows, 1), or a value that broadcasts to it; 0 if none.

        The call's own argument comes first, then the deltas on the model.
        """
        deltas = self.get("rope_deltas")
        if deltas is None:
            deltas = getattr(self.model, "_rope_deltas", None)
        if not getattr(deltas, "ndim", 0):
            return 0 if deltas is None else deltas
        deltas = deltas.reshape(-1, 1)
        return deltas[: self.rows] if deltas.shape[0] >= self.rows else deltas[:1]


Prepare = Callable[[BatchCall], Any]


def call_prepared(prepare: Prepare, rest: Factory = lambda call: call) -> Factory:
    """Factory of a model's call that prepares the arguments of a batch.

    Args:
        prepare: changes the call; returns ``REFUSED``, and changes nothing, if it does not
            support it.
        rest: the factory for other calls: without a batch's caches, with arguments that the
            model does not accept, or refused. By default the released call.
    """

    def factory(call: Callable[..., Any]) -> Callable[..., Any]:
        signature, other = inspect.signature(call), rest(call)

        @functools.wraps(call)
        def call_model(*args: Any, **kwargs: Any) -> Any:
            bound = bind_call(signature, args, kwargs)
            offset = None if bound is None else read_offset(find_argument(bound, "cache"))
            shape = None if bound is None else find_shape(bound)
            if (
                bound is None
                or offset is None
                or shape is None
                or shape[1] == 0
                or shape[0] != offset.rows.shape[0]
                or prepare(BatchCall(bound, offset, shape)) is REFUSED
            ):
                return other(*args, **kwargs)
            return call(*bound.args, **bound.kwargs)

        return call_model

    return factory


def with_row_rope(attention: Any, rows: Any, **parts: Any) -> Any:
    """An attention whose RoPE uses the rows' offsets (rows,), with other parts."""
    rope = attention.rope
    return with_parts(attention, rope=lambda x, offset=0: rope(x, offset=rows), **parts)
