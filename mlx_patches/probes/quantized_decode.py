"""Merges rows of unequal length with quantized caches, and decodes them."""

from __future__ import annotations

import importlib
from typing import Any

from .._patch import Target
from ..patches.mlx_vlm import batch_quantized
from . import NotApplicable, Result
from .rope_deltas import out_of_the_way

_FAMILY = "qwen3_5"
_BITS = 8
_STEPS = 4
# What the same model trips over as well.
_OTHERS = ("offset-alias", "batch-quantized", "quantized-masks", "mask-by-offset", "rope-deltas")


def probe(target: Target) -> Result:
    """Red where a row is told something else than alone with the same kind of cache."""
    if not hasattr(importlib.import_module(target.module), target.name):
        raise NotApplicable(f"the release has no {target.name}")
    from ..lab import EXACT, Family, NotBuilt, engine
    from ..lab.build import build
    from ..lab.compare import differences
    from ..lab.scenarios import LENGTHS, decode, feed, rows_of

    try:
        model = build(Family(target.distribution, _FAMILY))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    with out_of_the_way(_OTHERS):
        batch, makers = engine.quantized(model, [0], _BITS)
        batched, alone = (rows_of(model, LENGTHS) for _ in range(2))
        caches = []
        for row in (*batched, *alone):
            engine.forget(model)
            caches.append([make() for make in makers])
            feed(model, [row], caches[-1], row.chunks[0])
        for row, cache in zip(alone, caches[len(batched) :], strict=True):
            decode(model, [row], cache, _STEPS)
        layers = zip(batch, zip(*caches[: len(batched)], strict=True), strict=True)
        decode(model, batched, [merged(layer, list(rows)) for layer, rows in layers], _STEPS)
        said, expected = ([row.said for row in rows] for rows in (batched, alone))
        cell = differences(said, expected, EXACT.quantized())
    return Result(cell.verdict == "red", cell.detail, cell.figure)


def merged(layer: Any, rows: list[Any]) -> Any:
    """One batch cache, of the layer's kind, of the rows' caches."""
    kind = type(layer)
    if kind.__name__ == batch_quantized.CLASS:
        return batch_quantized.merge(kind, rows)
    return getattr(kind, "merge", type(rows[0]).merge)(rows)
