"""The batch contract of recurrent caches: ``ArraysCache`` and its subclass ``MambaCache``.

A recurrent cache has slots. A slot holds the states of all rows, an array (rows, ...), or None
before the first token. A token cannot be removed from a state, so padding must never enter one.
Two arrays (rows,) of int32 count positions from the next one:

``left_padding``  up to the row's first token; zero or less once its padding was fed.
``lengths``       up to the end of the row's tokens; later positions are right padding.

Either is None if no row has such padding. The operations:

``merge(rows)``       The rows in their order, zeros for a row without a state, no padding. The
                      number of rows is known, even before the first token.
``extend(other)``     Appends the other's rows, states and padding. ``other`` is unchanged.
``filter(indices)``   The rows at ``indices`` in that order, states and padding.
``extract(idx)``      Row ``idx`` as a cache of the batch's class, without padding.
``prepare(lengths)``  Announces right padding. ``finalize()`` clears it, and left padding too.
``advance(N)``        Counts ``N`` fed positions. Before mlx-lm 0.30.4 ``make_mask`` counts them.
``make_mask(N)``      (rows, N) of bool, True where a next position holds a token. None if all do:
                      a step without padding computes no mask.
``state``             Everything that ``from_state`` needs to restore the whole cache.
``is_trimmable()``    False. ``size()`` is 0. ``empty()`` is whether no state was written.

An operation that raises leaves rows and padding as they were. No decode step reads the device.

The other modules repair one operation each, with a section per defect. The helpers below add only
``ROWS`` to a cache, so two patches can both use them.
"""

import copy
from collections.abc import Sequence
from typing import Any

from ....core.arrays import mx

# The attributes that hold padding, and their value for a row without padding.
PADDING = {"left_padding": 0, "lengths": 2**31 - 1}
# The cache attribute for the number of rows of a batch before its first token.
ROWS = "_mlx_patches_row_count"


def count_rows(cache: Any) -> int:
    """The number of rows of a cache; 1 if neither its arrays nor ``remember_rows`` show it."""
    arrays = (*cache.cache, *read_padding(cache).values())
    known = next((array for array in arrays if array is not None), None)
    return int(getattr(cache, ROWS, 1) if known is None else known.shape[0])


def remember_rows(cache: Any, rows: int) -> None:
    """Note a batch's number of rows; ``count_rows`` uses it until a slot is written."""
    setattr(cache, ROWS, rows)


def read_padding(cache: Any) -> dict[str, Any]:
    """A cache's padding (rows,) by attribute name, without attributes that are None."""
    found = {name: getattr(cache, name, None) for name in PADDING}
    return {name: padding for name, padding in found.items() if is_per_row(padding)}


def is_per_row(padding: Any) -> bool:
    # mlx-lm 0.30.4 gives a merged ``MambaCache`` one number for all rows: see ``mamba-rows``.
    return padding is not None and padding.ndim == 1


def write_padding(cache: Any, padding: dict[str, Any]) -> None:
    for name, values in padding.items():
        setattr(cache, name, values)


def take_padding(padding: dict[str, Any], rows: Any) -> dict[str, Any]:
    return {name: values[rows] for name, values in padding.items()}


def concatenate_padding(parts: Sequence[dict[str, Any]], rows: Sequence[int]) -> dict[str, Any]:
    return {
        name: mx.concatenate(
            [
                part[name] if name in part else mx.full((number,), none, mx.int32)
                for part, number in zip(parts, rows, strict=True)
            ]
        )
        for name, none in PADDING.items()
        if any(name in part for part in parts)
    }


def copy_as_row(batch: Any, states: list[Any]) -> Any:
    """A cache of the batch's class for one row with these states, (1, ...) each or None."""
    row = copy.copy(batch)  # keeps the attributes that a subclass's constructor set
    row.cache = states
    write_padding(row, dict.fromkeys(PADDING))
    vars(row).pop(ROWS, None)  # it counts the batch's rows
    return row
