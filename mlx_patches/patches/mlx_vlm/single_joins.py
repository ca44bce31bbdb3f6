"""A batch that began with a single prompt dies when the next one joins.

Why
    ``BatchGenerator`` gives a single prompt the model's own caches, and any other the caches of
    a batch. ``Batch.extend`` then extends one with the other: a solo cache has no ``extend``,
    and a batch cache asks it for what only batch caches have.
How
    Solo caches become a batch of one row before two batches are joined.
Upstream
    mlx-vlm 0.5.0 merges caches in its new generator.
Retire when
    No supported release is older than mlx-vlm 0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._patch import Patch, Target, around


def extended(extend: Callable[[Any, Any], None], batch: Any, other: Any) -> None:
    """Add another batch's rows to a batch, both with caches of batches."""
    for one in (batch, other):
        one.cache = [batched(layer) for layer in one.cache]
    extend(batch, other)


def batched(layer: Any) -> Any:
    """A layer's cache as that of a batch."""
    if hasattr(layer, "caches"):
        return type(layer)(*map(batched, layer.caches))
    return layer if hasattr(layer, "extend") else type(layer).merge([layer])


PATCH = Patch(
    id="single-joins",
    summary="a batch that began with a single prompt dies when the next one joins",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.generate",
            "Batch.extend",
            around(extended),
            body=("Batch.extend", "BatchGenerator._process_prompts"),
        ),
    ),
    probe="mlx_patches.probes.single_joins:probe",
    module=__name__,
)
