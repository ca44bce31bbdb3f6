"""``merge``, ``extend`` and ``filter`` of recurrent caches: rows join and leave a batch."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ....core.verbs import Patch, after, in_caches, mx, result, wrap
from .contract import (
    concatenate_padding,
    count_rows,
    read_padding,
    remember_rows,
    take_padding,
    write_padding,
)


def remember_merged(batch: Any, /, caches: Sequence[Any]) -> Any:
    remember_rows(batch, len(caches))
    return batch


def remember_filtered(cache: Any, /, batch_indices: Any) -> None:
    remember_rows(cache, len(batch_indices))


def extend_unwritten(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """Add another batch's rows, with zeros for states that one side has not written yet."""
    rows = count_rows(cache) + count_rows(other)
    joining, before = copy.copy(other), cache.cache
    joining.cache, cache.cache = fill_slots(other, cache), fill_slots(cache, other)
    try:
        extend(cache, joining)
    except BaseException:
        cache.cache = before
        raise
    remember_rows(cache, rows)


def fill_slots(cache: Any, like: Any) -> list[Any]:
    """A cache's states, with zeros (rows, ...) in the slots that only ``like`` has written."""
    rows = count_rows(cache)
    return [
        mx.zeros((rows, *theirs.shape[1:]), theirs.dtype)
        if mine is None and theirs is not None
        else mine
        for mine, theirs in zip(cache.cache, like.cache, strict=True)
    ]


ARRAYS_EXTEND = Patch(
    id="arrays-extend",
    severity="crash",
    targets=(
        *result(
            "mlx_lm.models.cache:ArraysCache.merge",
            remember_merged,
            fingerprint_of=("ArraysCache.merge", "ArraysCache.extend"),
        ),
        *after(
            "mlx_lm.models.cache:ArraysCache.filter",
            remember_filtered,
            fingerprint_of=("ArraysCache.filter", "ArraysCache.extend"),
        ),
        *wrap(
            "mlx_lm.models.cache:ArraysCache.extend",
            extend_unwritten,
            fingerprint_of=("ArraysCache.extend",) * 2,  # as it was measured
        ),
    ),
    probe=".probe_extend:probe",
    doc="""mlx-lm: a prompt that joins a hybrid model's batch during prefill crashes the batch.

    Why: The engine adds new prompts to those in prefill. A recurrent cache without a state does not
        record its number of rows, and ``extend`` keeps only the other batch's states: rows are
        missing, or get another row's state.
    How: A merged cache remembers its number of rows. If one side has no state yet, its rows get
        zeros before the two are joined.
    Upstream: mlx-lm 0.31.3 does the same.
    Retire when: No supported release is older than mlx-lm 0.31.3.
    """,
)


def filter_padding(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    padding = read_padding(cache)
    keep(cache, batch_indices)
    # Computed from the padding before the call: the release may keep, filter or drop it. Written
    # last, so that the padding stays if the release raises.
    write_padding(cache, take_padding(padding, batch_indices))


def extend_padding(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    sides = (cache, other)
    padding, rows = [read_padding(side) for side in sides], [count_rows(side) for side in sides]
    extend(cache, other)
    write_padding(cache, concatenate_padding(padding, rows))


ARRAYS_ROWS = Patch(
    id="arrays-rows",
    targets=(
        *wrap(in_caches("ArraysCache.filter"), filter_padding),
        *wrap(in_caches("ArraysCache.extend"), extend_padding),
    ),
    probe=".probe_rows:probe",
    doc="""mlx-lm and mlx-vlm, recurrent models: rows are masked by the padding of a row
    that left.

    Why: ``ArraysCache.filter`` and ``extend`` change the states of a batch, but not its padding.
        The next mask has as many rows as the batch had before: the model raises, or masks a row
        with another row's padding.
    How: ``filter`` also filters the padding; ``extend`` adds the padding of the joining rows.
    Upstream: mlx-lm 0.30.4 no longer drops the padding, and from 0.31.3 it follows the rows.
    Retire when: No supported release is older than mlx-lm 0.31.3.
    """,
)
