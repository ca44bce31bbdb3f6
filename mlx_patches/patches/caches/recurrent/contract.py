"""The batch contract of recurrent caches: ``ArraysCache``, and ``MambaCache`` that inherits it.

A recurrent cache has slots. A slot holds the states of all rows, an array (rows, ...), or None
before the first token. A state cannot forget a token, so padding must never be read. Two arrays
(rows,) of int32 count the positions from the next one on:

``left_padding``  to the row's first token; zero or less once its padding was fed.
``lengths``       to the end of the row's tokens; what comes after it is right padding.

Either is None where no row has any. What the operations guarantee:

``merge(rows)``       The rows in their order, zeros for a row without a state, no padding. The
                      number of rows is known, even before the first token.
``extend(other)``     The other's rows come after its own, states and padding. ``other`` stays.
``filter(indices)``   The rows at ``indices`` in that order, states and padding.
``extract(idx)``      Row ``idx`` as a cache of the batch's class. Its padding was fed: it has none.
``prepare(lengths)``  Announces right padding. ``finalize()`` ends it, and left padding with it.
``advance(N)``        Counts ``N`` positions that were fed. Before mlx-lm 0.30.4: ``make_mask``.
``make_mask(N)``      (rows, N) of bool, True where the next positions hold a token. None for all:
                      no step pays for a mask where no row has padding left.
``state``             What ``from_state`` restores, to a cache that is complete.
``is_trimmable()``    False. ``size()`` is 0. ``empty()`` says that no state was written.

An operation that raises leaves rows and padding as they were. No decode step reads the device.

Each release breaks another part of it. The modules beside this one repair one operation each, in
a section a defect, with the helpers below. The helpers are plain functions of a cache, and
``ROWS`` is all that they add to one: two patches that both use them do not get in each other's way.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

LM = ("mlx-lm", "mlx_lm.models.cache")
VLM = ("mlx-vlm", "mlx_vlm.models.cache")
# How padding is called, and its value for a row that has none.
PADDING = {"left_padding": 0, "lengths": 2**31 - 1}
# The attribute that knows the rows of a batch before its first token.
ROWS = "_mlx_patches_row_count"


def count_rows(cache: Any) -> int:
    """How many rows a cache has; 1 where nothing in it says."""
    arrays = (*cache.cache, *read_padding(cache).values())
    known = next((array for array in arrays if array is not None), None)
    return int(getattr(cache, ROWS, 1) if known is None else known.shape[0])


def remember_rows(cache: Any, rows: int) -> None:
    """Note how many rows a batch has, for as long as no slot of it was written."""
    setattr(cache, ROWS, rows)


def read_padding(cache: Any) -> dict[str, Any]:
    """The padding of a cache's rows by name, (rows,) each, without what no row has."""
    found = {name: getattr(cache, name, None) for name in PADDING}
    return {name: padding for name, padding in found.items() if is_per_row(padding)}


def is_per_row(padding: Any) -> bool:
    """Whether there is a number for each row."""
    # mlx-lm 0.30.4 merges Mamba's rows to one number for all: see ``mamba-rows``.
    return padding is not None and padding.ndim == 1


def write_padding(cache: Any, padding: dict[str, Any]) -> None:
    """Set the padding that is given; leave the rest."""
    for name, values in padding.items():
        setattr(cache, name, values)


def take_padding(padding: dict[str, Any], rows: Any) -> dict[str, Any]:
    """The padding of the rows at these indices."""
    return {name: values[rows] for name, values in padding.items()}


def concatenate_padding(parts: Sequence[dict[str, Any]], rows: Sequence[int]) -> dict[str, Any]:
    """The padding of several batches' rows.

    Args:
        parts: what each batch has.
        rows: how many rows each has.
    """
    import mlx.core as mx

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
    row = copy.copy(batch)  # a subclass keeps what else its constructor set
    row.cache = states
    write_padding(row, dict.fromkeys(PADDING))
    vars(row).pop(ROWS, None)  # the batch's
    return row
