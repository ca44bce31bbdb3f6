"""Prompts of a Mamba model with a history die when they are put in one batch.

Why
    ``ArraysCache.merge`` makes the batch's cache with a number of slots. ``MambaCache`` takes
    left padding as its first argument, so the batch is told that it has a padding of 2, one
    number for all rows, and ``make_mask`` dies of it. A cached prompt is enough.
How
    What is no padding of rows is dropped from the merged cache: merged rows have none.
Upstream
    mlx-lm 0.30.6 has no ``MambaCache`` any more.
Retire when
    No supported release is older than mlx-lm 0.30.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._patch import Patch, Target, around


def merged(merge: Callable[..., Any], cls: Any, caches: Sequence[Any]) -> Any:
    """A batch of these rows."""
    batch = merge(cls, caches)
    if not of_rows(batch.left_padding):
        batch.left_padding = None
    return batch


def of_rows(padding: Any) -> bool:
    """Whether there is a padding for each row."""
    return padding is not None and padding.ndim == 1


PATCH = Patch(
    id="mamba-merge",
    summary="prompts of a Mamba model with a history die when they are put in one batch",
    targets=(
        Target(
            "mlx-lm",
            "mlx_lm.models.cache",
            "ArraysCache.merge",
            around(merged),
            body=("ArraysCache.merge", "MambaCache.__init__"),
        ),
    ),
    probe="mlx_patches.probes.mamba_merge:probe",
    module=__name__,
)
