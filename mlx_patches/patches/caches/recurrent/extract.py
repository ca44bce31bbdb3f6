"""``extract`` of recurrent caches: a batch's row as a cache of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ....core.patch import Patch, Target, around
from .contract import LM, copy_as_row, is_per_row

# -- extract: recurrent-extract ------------------------------------------------------------------


def extract_caches(extract_cache: Callable[[Any, int], Any], batch: Any, idx: int) -> Any:
    """The caches of row ``idx``, one a layer."""
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
    summary="a batch of a recurrent or hybrid model raises as soon as its first row ends",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.generate",
            "Batch.extract_cache",
            around(extract_caches),
            # The first is the same where the caches have an ``extract``.
            body=("Batch.extract_cache", "_merge_caches"),
        ),
    ),
    probe="mlx_patches.probes.recurrent_extract:probe",
    module=__name__,
    doc="""A batch of a recurrent or hybrid model raises as soon as its first row ends.

    Why
        When a row ends, ``BatchGenerator`` takes its cache out of the batch. Recurrent caches
        and lists of caches can be batched, but have no ``extract``: AttributeError, in every
        batch.
    How
        ``Batch.extract_cache`` takes the row out of each cache that cannot do it: row ``idx`` of
        every state, or of every cache in a list.
    Upstream
        mlx-lm 0.30.4 gives both caches an ``extract``.
    Retire when
        No supported release is older than mlx-lm 0.30.4.
    """,
)


# -- merge and extract of MambaCache: mamba-rows -------------------------------------------------


def merge_without_padding(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of these rows; they have no padding."""
    batch = merge(cls, caches)
    if not is_per_row(batch.left_padding):
        batch.left_padding = None
    return batch


def extract_as_batch(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` of a batch, as a cache of the batch's class."""
    row = extract(cache, idx)
    return row if type(row) is type(cache) else copy_as_row(cache, row.cache)


MAMBA_ROWS = Patch(
    id="mamba-rows",
    summary="Mamba prompts with a history raise in a batch; a row taken from one never moves on",
    targets=tuple(
        Target(*LM, path, around(wrapper), body=(path, "MambaCache.__init__"))
        for path, wrapper in (
            ("ArraysCache.merge", merge_without_padding),
            ("ArraysCache.extract", extract_as_batch),
        )
    ),
    probe="mlx_patches.probes.mamba_rows:probe",
    module=__name__,
    doc="""Mamba prompts with a history raise in a batch; a row taken from one never moves on.

    Why
        ``MambaCache`` inherits ``merge`` and ``extract``. ``merge`` makes the batch's cache with
        a number of slots, which ``MambaCache`` takes for a left padding of 2, one number for all
        rows: ``make_mask`` raises. ``extract`` makes an ``ArraysCache``, which Mamba reads and
        never writes: every step of the row starts from the state that it left the batch with.
    How
        A merged cache drops a padding that is not a number a row. A row has its batch's class.
    Upstream
        mlx-lm 0.30.6 has no ``MambaCache`` any more.
    Retire when
        No supported release is older than mlx-lm 0.30.6.
    """,
)
