"""Models that accept ``rope_deltas``, but without them use those of another request."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ....core.arrays import mx
from ..._shared.row_record import fill_column, read_column, update_record

FAMILIES = ("ernie4_5_moe_vl", "falcon_ocr")
# The attribute of the model; releases before 0.5.0 name it differently, or accept no deltas.
KEPT = "_rope_deltas"


def call_with_deltas(call: Callable[..., Any]) -> Callable[..., Any]:
    """Factory of the language model's call, with the rope deltas of its rows.

    Deltas that the host passes or the model computes are stored in the record of the rows' first
    cache. Before a call, those of the record replace other rows' on the model; an engine also
    reads them after a prompt. Rows without a record are text.
    """
    # The place of ``cache`` among the arguments after the model and the token ids.
    place = list(inspect.signature(call).parameters).index("cache") - 2

    @functools.wraps(call)
    def call_model(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        cache = kwargs.get("cache", args[place] if len(args) > place else None)
        carrier = cache[0] if cache else None
        if carrier is None or not hasattr(model, KEPT):
            return call(model, inputs, *args, **kwargs)
        rows, given = inputs.shape[0], kwargs.get("rope_deltas")
        own = find_deltas(carrier, rows) if given is None else given
        if own is not getattr(model, KEPT):  # setting an attribute of a module is slow
            model._rope_deltas = own
        out = call(model, inputs, *args, **kwargs)
        own = getattr(model, KEPT) if given is None else given
        if own is not None:
            keep_deltas(carrier, own, rows)
        return out

    return call_model


def find_deltas(carrier: Any, rows: int) -> Any:
    """The deltas (rows, 1) in a cache's record, 0 without one; None before the first tokens."""
    begins = getattr(carrier, "keys", carrier) is None
    return None if begins else fill_column(carrier, "deltas", rows)


def keep_deltas(carrier: Any, deltas: Any, rows: int) -> None:
    """Store the deltas of a call in a cache's record, as the model reads them."""
    if tuple(deltas.shape) != (rows, 1):  # an engine passes the same array in each decode step
        flat = deltas.reshape(-1, 1)
        whole = flat.shape[0] >= rows
        deltas = flat[:rows] if whole else mx.broadcast_to(flat[:1], (rows, 1))
    if deltas is not read_column(carrier, "deltas", rows):
        update_record(carrier, deltas=deltas)
