"""Slice the arguments of a model's batched call by row, and join the rows' outputs."""

import copy
import dataclasses
import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.arrays import mx

# Arguments with a call's tokens: ids (rows, tokens), or embeddings (rows, tokens, width).
TOKENS = ("inputs", "input_ids", "tokens", "inputs_embeds", "input_embeddings")
# Of shape (rows, length), (3, rows, length) or (rows, axes, length).
POSITIONS = "position_ids"

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class RowPart:
    """The part of a batched call that belongs to one row.

    ``shape`` is the batch's, (rows, length). ``span`` is the row's tokens among the ``length``
    positions, as (first, one past the last). ``keys`` is the number of keys in the batch's masks
    and the index of the row's first key; None if unknown.
    """

    row: int
    shape: tuple[int, int]
    span: Span
    keys: tuple[int, int] | None = None


def bind_call(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments | None:
    """Bind a call's arguments by name; None if the function does not accept them."""
    try:
        return signature.bind(*args, **kwargs)
    except TypeError:
        return None


def by_name(call_bound: Callable[[Any, inspect.BoundArguments], Any]) -> Callable[[Any], Any]:
    """A factory of a call that is passed to ``call_bound(call, bound)`` if it can be bound."""

    def factory(call: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(call)

        @functools.wraps(call)
        def call_by_name(*args: Any, **kwargs: Any) -> Any:
            bound = bind_call(signature, args, kwargs)
            return call(*args, **kwargs) if bound is None else call_bound(call, bound)

        return call_by_name

    return factory


def find_argument(bound: inspect.BoundArguments, name: str) -> Any:
    """An argument of a call or of its ``**kwargs``; None if it was not passed."""
    extra = bound.arguments.get(find_extra_name(bound.signature), {})
    return bound.arguments.get(name, extra.get(name))


def find_extra_name(signature: inspect.Signature) -> str:
    """The name of a function's ``**kwargs``; empty if it has none."""
    parameters = signature.parameters.values()
    return next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")


def find_shape(bound: inspect.BoundArguments) -> tuple[int, int] | None:
    """A call's number of rows and positions; None if it has no argument of ``TOKENS``."""
    for name in TOKENS:
        value = find_argument(bound, name)
        if getattr(value, "ndim", 0) >= 2:
            return int(value.shape[0]), int(value.shape[1])
    return None


@functools.cache
def accepts_deltas(call: Callable[..., Any]) -> bool:
    """Whether a model's call reads ``rope_deltas`` from its keyword arguments."""
    return "rope_deltas" in inspect.unwrap(call).__code__.co_consts


def slice_call(
    bound: inspect.BoundArguments, part: RowPart, cache: Sequence[Any]
) -> inspect.BoundArguments:
    own = OrderedDict(
        (name, slice_argument(name, value, part)) for name, value in bound.arguments.items()
    )
    extra = own.get(find_extra_name(bound.signature), {})
    (extra if "cache" in extra else own)["cache"] = cache
    return inspect.BoundArguments(bound.signature, own)


def slice_argument(name: str, value: Any, part: RowPart) -> Any:
    """Slice an argument to one row and its tokens.

    In arrays, the axis of rows is sliced to the row, the axis of tokens to the row's tokens, and a
    mask's axis of keys to the row's keys. Dictionaries, lists and tuples are searched for such
    arrays. Everything else is shared by all rows, and passed on unchanged.
    """
    if type(value) is dict:  # a module is also an instance of dict
        return {key: slice_argument(str(key), one, part) for key, one in value.items()}
    if type(value) in (list, tuple):
        sliced = [slice_argument(name, one, part) for one in value]
        changed = any(one is not old for one, old in zip(sliced, value, strict=True))
        return type(value)(sliced) if changed else value
    sizes = getattr(value, "shape", None)
    if not sizes:
        return value
    index = _find_index(name, tuple(sizes), part)
    return value if all(one == slice(None) for one in index) else value[tuple(index)]


def _find_index(name: str, sizes: tuple[int, ...], part: RowPart) -> list[slice]:
    rows, length = part.shape
    index = [slice(None)] * len(sizes)
    at = _find_row_axis(name, sizes, rows)
    if at is not None:
        index[at] = slice(part.row, part.row + 1)
    elif sizes[0] == 1:  # one row that all rows share
        at = 0
    if name == POSITIONS:
        at, tokens = 0, len(sizes) - 1
    elif at is None or name in ("cross_attention_states", "rope_deltas"):  # no tokens
        return index
    else:
        tokens = at + (2 if len(sizes) == 4 else 1)
    if at < tokens < len(sizes) and sizes[tokens] == length:
        index[tokens] = slice(*part.span)
    if part.keys and "mask" in name and len(sizes) > 1 and sizes[-1] == part.keys[0]:
        behind = length - part.span[1]
        index[-1] = slice(part.keys[1], part.keys[0] - behind)
    return index


def _find_row_axis(name: str, sizes: tuple[int, ...], rows: int) -> int | None:
    by_axis = len(sizes) == 3 and sizes[:2] == (3, rows)
    if by_axis and (name == POSITIONS or sizes[0] != rows):
        return 1
    return 0 if sizes[0] == rows else None


def join_outputs(outputs: Sequence[Any], spans: Sequence[Span], shape: tuple[int, int]) -> Any:
    """Join the outputs of the rows' calls to the output of the batch's call.

    Dataclasses, other objects with ``logits``, dictionaries, lists and tuples are joined value
    by value. Arrays (1, tokens of the row, ...) become one of (rows, length, ...), with zeros at
    padding; other arrays (1, ...) of one shape become one of (rows, ...). A value that is the
    same for all rows is returned once. Anything else becomes a list with one item per row.
    """
    known = [out for out, (start, stop) in zip(outputs, spans, strict=True) if start < stop]
    first = known[0]
    same = all(out is first for out in known)
    # A single row's output is joined like any other: it is not a value of the batch.
    if same and len(known) > 1 and not hasattr(first, "shape"):
        return first
    if any(type(out) is not type(first) for out in known):
        return list(outputs)
    if hasattr(first, "shape"):
        return join_arrays(outputs, spans, shape)

    def join(pick: Any) -> Any:
        some = zip(outputs, spans, strict=True)
        picked = [pick(out) if start < stop else None for out, (start, stop) in some]
        return join_outputs(picked, spans, shape)

    names = _field_names(first)
    if names is not None:
        joined = copy.copy(first)
        for name in names:
            value = join(lambda out, name=name: getattr(out, name, None))
            object.__setattr__(joined, name, value)  # even if the class is frozen
        return joined
    if isinstance(first, dict) and all(out.keys() == first.keys() for out in known):
        return {key: join(lambda out, key=key: out[key]) for key in first}
    if isinstance(first, (list, tuple)) and all(len(out) == len(first) for out in known):
        items = [join(lambda out, at=at: out[at]) for at in range(len(first))]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    if isinstance(first, (bool, int, float, str, bytes)):
        same = all(out == first for out in known)
    return first if same else list(outputs)


def _field_names(value: Any) -> list[str] | None:
    """The names of an output object's values; None for any other value."""
    if dataclasses.is_dataclass(value):
        return list(dict.fromkeys([f.name for f in dataclasses.fields(value)] + _own_names(value)))
    return _own_names(value) if hasattr(value, "logits") else None


def _own_names(value: Any) -> list[str]:
    return list(getattr(value, "__dict__", ()))


def join_arrays(arrays: Sequence[Any], spans: Sequence[Span], shape: tuple[int, int]) -> Any:
    """Join the rows' arrays to one of the batch; a list of them if their shapes do not fit."""
    length = shape[1]
    known = [
        (array, stop - start)
        for array, (start, stop) in zip(arrays, spans, strict=True)
        if start < stop
    ]
    first = known[0][0]
    if any(array.ndim < 1 or array.shape[0] != 1 for array, _ in known):
        return first if all(array is first for array, _ in known) else list(arrays)
    by_token = all(array.ndim > 1 and array.shape[1] == tokens for array, tokens in known)
    rest = 2 if by_token else 1
    if any(array.shape[rest:] != first.shape[rest:] for array, _ in known):
        return list(arrays)
    sizes = (1, length, *first.shape[2:]) if by_token else first.shape
    whole = []
    for array, (start, stop) in zip(arrays, spans, strict=True):
        if start == stop:
            whole.append(mx.zeros(sizes, first.dtype))
        elif by_token and (start, stop) != (0, length):
            sides = [(0, 0), (start, length - stop), *[(0, 0)] * (first.ndim - 2)]
            whole.append(mx.pad(array, sides))
        else:
            whole.append(array)
    return mx.concatenate(whole)
