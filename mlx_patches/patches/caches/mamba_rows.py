"""Mamba prompts with a history die in a batch; a row taken from one stands still.

Why
    ``MambaCache`` inherits how rows become a batch and leave it. ``merge`` makes the batch's
    cache with a number of slots, which ``MambaCache`` takes for a left padding of 2, one number
    for all rows: ``make_mask`` dies of it. ``extract`` makes an ``ArraysCache``, which Mamba
    reads and never writes: the row decodes from the state that it left with.
How
    What is no padding of rows is dropped from the merged cache. A row has its batch's class.
Upstream
    mlx-lm 0.30.6 has no ``MambaCache`` any more.
Retire when
    No supported release is older than mlx-lm 0.30.6.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from ...core.patch import Factory, Patch, Target, around

MODULE = "mlx_lm.models.cache"


def merged(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of these rows; they have no padding."""
    batch = merge(cls, caches)
    if not of_rows(batch.left_padding):
        batch.left_padding = None
    return batch


def of_rows(padding: Any) -> bool:
    """Whether there is a padding for each row."""
    return padding is not None and padding.ndim == 1


def extracted(extract: Callable[[Any, int], Any], cache: Any, idx: int) -> Any:
    """Row ``idx`` of a batch."""
    row = extract(cache, idx)
    return row if type(row) is type(cache) else of_kind(row, cache)


def of_kind(row: Any, cache: Any) -> Any:
    """A row as a cache of the same class as its batch's."""
    out = copy.copy(cache)
    vars(out).update(vars(row))
    return out


def _target(name: str, factory: Factory) -> Target:
    path = f"ArraysCache.{name}"
    return Target("mlx-lm", MODULE, path, factory, body=(path, "MambaCache.__init__"))


PATCH = Patch(
    id="mamba-rows",
    summary="Mamba prompts with a history die in a batch; a row taken from one stands still",
    targets=(_target("merge", around(merged)), _target("extract", around(extracted))),
    probe="mlx_patches.probes.mamba_rows:probe",
    module=__name__,
)
