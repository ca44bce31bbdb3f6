"""A model that accepts ``rope_deltas``, but without them uses what another request left on it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..._shared.row_record import fill_column, read_column, update_record

FAMILIES = ("ernie4_5_moe_vl", "falcon_ocr")
# The attribute of the model; releases before 0.5.0 have another, or accept no deltas.
KEPT = "_rope_deltas"


def with_own(call: Callable[..., Any]) -> Callable[..., Any]:
    """The language model's call, with the rope deltas of the rows that it is fed.

    Deltas that the host passes, and those that the model computes, go to the record of the rows'
    first cache. Before a call the model gets those of the record in place of other rows'; an
    engine also reads them after a prompt. Rows without a record are texts.
    """
    # The place of ``cache`` among the arguments after the model and the token ids.
    place = list(inspect.signature(call).parameters).index("cache") - 2

    @functools.wraps(call)
    def replacement(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", args[place] if len(args) > place else None)
        carrier = cache[0] if cache else None
        if carrier is None or not hasattr(model, KEPT):
            return call(model, inputs, *args, **kwargs)
        rows, given = inputs.shape[0], kwargs.get("rope_deltas")
        own = own_deltas(carrier, rows) if given is None else given
        if own is not getattr(model, KEPT):  # setting an attribute of a module is slow
            model._rope_deltas = own
        out = call(model, inputs, *args, **kwargs)
        own = getattr(model, KEPT) if given is None else given
        if own is not None:
            keep_deltas(carrier, own, rows)
        return out

    return replacement


def own_deltas(carrier: Any, rows: int) -> Any:
    """The deltas (rows, 1) in a cache's record, 0 without one; None before the first tokens."""
    begins = getattr(carrier, "keys", carrier) is None
    return None if begins else fill_column(carrier, "deltas", rows)


def keep_deltas(carrier: Any, deltas: Any, rows: int) -> None:
    """Write the deltas that a call was given to a cache's record, as the model reads them.

    Args:
        carrier: the rows' first cache.
        deltas: one a row, or one for all of them.
        rows: the number of rows.
    """
    if tuple(deltas.shape) != (rows, 1):  # an engine passes the same array in each decode step
        import mlx.core as mx

        flat = deltas.reshape(-1, 1)
        whole = flat.shape[0] >= rows
        deltas = flat[:rows] if whole else mx.broadcast_to(flat[:1], (rows, 1))
    if deltas is not read_column(carrier, "deltas", rows):
        update_record(carrier, deltas=deltas)
