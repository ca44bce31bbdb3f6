"""``extract`` of recurrent caches: a batch's row as a solo cache."""

import copy
from typing import Any

from ....core.verbs import Function, Patch, result, wrap
from .contract import copy_as_row, is_per_row


def extract_caches(extract_cache: Function, batch: Any, idx: int) -> Any:
    if all(hasattr(cache, "extract") for cache in batch.cache):
        return extract_cache(batch, idx)
    return [extract_row(cache, idx) for cache in batch.cache]


def extract_row(cache: Any, idx: int) -> Any:
    """Row ``idx`` of a layer's cache; an unused slot stays unused."""
    if hasattr(cache, "extract"):
        return cache.extract(idx)
    if hasattr(cache, "caches"):
        row = copy.copy(cache)
        row.caches = tuple(extract_row(inner, idx) for inner in cache.caches)
        return row
    return copy_as_row(
        cache, [state if state is None else state[idx : idx + 1] for state in cache.cache]
    )


RECURRENT_EXTRACT = Patch(
    id="recurrent-extract",
    every_model=False,
    severity="crash",
    targets=wrap(
        "mlx_lm.generate:Batch.extract_cache",
        extract_caches,
        # Only ``extract_cache`` is the same in releases whose caches have ``extract``.
        fingerprint_of=("Batch.extract_cache", "_merge_caches"),
    ),
    probe=".probe_extract:probe",
    doc="""mlx-lm: a batch of a recurrent or hybrid model crashes when its first row ends.

    Why: When a row ends, ``BatchGenerator`` extracts its cache from the batch. Recurrent caches and
        lists of caches can be batched, but have no ``extract``: every batch raises AttributeError.
    How: ``Batch.extract_cache`` extracts the row from such caches: row ``idx`` of every state, or
        of every cache in a list.
    Upstream: mlx-lm 0.30.4 adds ``extract`` to both classes.
    Retire when: No supported release is older than mlx-lm 0.30.4.
    """,
)


def drop_scalar_padding(batch: Any, /) -> Any:
    """The merged batch, without a left padding that is one number for all rows."""
    if not is_per_row(batch.left_padding):
        batch.left_padding = None
    return batch


def restore_class(row: Any, batch: Any, /) -> Any:
    return row if type(row) is type(batch) else copy_as_row(batch, row.cache)


MAMBA_ROWS = Patch(
    id="mamba-rows",
    severity="crash",
    targets=(
        *result(
            "mlx_lm.models.cache:ArraysCache.merge",
            drop_scalar_padding,
            fingerprint_of=("ArraysCache.merge", "MambaCache.__init__"),
        ),
        *result(
            "mlx_lm.models.cache:ArraysCache.extract",
            restore_class,
            fingerprint_of=("ArraysCache.extract", "MambaCache.__init__"),
        ),
    ),
    probe=".probe_mamba_rows:probe",
    doc="""mlx-lm: Mamba crashes in a batch with history, and extracted rows keep a stale state.

    Why: ``MambaCache`` inherits ``merge`` and ``extract``. ``merge`` calls the class with the
        number of slots, which ``MambaCache`` takes for its left padding: 2 for all rows, and
        ``make_mask`` raises. ``extract`` makes an ``ArraysCache``, which Mamba reads but never
        writes: every step of the row starts from the state at which it left the batch.
    How: A merged cache drops left padding that is not an array (rows,). An extracted row gets the
        batch's class.
    Upstream: mlx-lm 0.30.6 removes ``MambaCache``.
    Retire when: No supported release is older than mlx-lm 0.30.6.
    """,
)
