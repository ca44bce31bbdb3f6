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

import sys
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around


def extended(extend: Callable[[Any, Any], None], batch: Any, other: Any) -> None:
    """Add another batch's rows to a batch, both with caches of batches."""
    for one in (batch, other):
        one.cache = [batched(layer) for layer in one.cache]
    extend(batch, other)


def extended_layers(extend: Callable[..., Any], ours: Any, theirs: Any) -> Any:
    """Join the layers' caches of two batches."""
    if not ours or not theirs:
        return extend(ours, theirs)
    joined = []
    for one, other in zip(ours, theirs, strict=True):
        one, other = batched(one), batched(other)
        if hasattr(one, "caches"):
            one.extend(other)
            joined.append(one)
        else:
            joined += extend([one], [other])
    return joined


def batched(layer: Any) -> Any:
    """A layer's cache as that of a batch."""
    if hasattr(layer, "caches"):
        return type(layer)(*map(batched, layer.caches))
    if hasattr(layer, "extend"):
        return layer
    row = whole(layer)
    return type(row).merge([row]) if hasattr(type(row), "merge") else layer


def whole(layer: Any) -> Any:
    """A cache in chunks as one that keeps everything, as the generator's batches do.

    Zeros stand for what the chunks dropped, which is not attended to any more.
    """
    if not hasattr(layer, "chunk_size"):
        return layer
    import mlx.core as mx

    row = sys.modules[type(layer).__module__].KVCache()
    if layer.keys is not None:
        dropped = layer.start_position
        front = [(0, 0), (0, 0), (dropped, 0), (0, 0)]
        held = layer.offset - dropped
        row.keys, row.values = (mx.pad(s[..., :held, :], front) for s in (layer.keys, layer.values))
        row.offset = layer.offset
    return row


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
        Target("mlx-vlm", "mlx_vlm.generate.ar", "_extend_cache", around(extended_layers)),
    ),
    probe="mlx_patches.probes.single_joins:probe",
    module=__name__,
)
