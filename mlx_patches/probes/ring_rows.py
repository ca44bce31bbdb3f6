"""Runs rows of Unlimited-OCR past their ring, in a batch and into one, beside themselves alone."""

from __future__ import annotations

import importlib.util
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result
from .rope_deltas import carried

FAMILY = "unlimited_ocr"


def probe(target: Target) -> Result:
    """Red where a row reads what it has dropped alone, or forgets how long its prompt was."""
    if importlib.util.find_spec(f"mlx_vlm.models.{FAMILY}") is None:
        raise NotApplicable(f"this release has no {FAMILY}")
    if target.name.startswith("BatchKVCache."):
        return carried(target)
    from ..lab import Family, NotBuilt
    from ..lab.build import build
    from ..lab.scenarios import SCENARIOS, compare

    try:
        model = build(Family(target.distribution, FAMILY))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    if target.name == "LanguageModel.__call__":
        cell = SCENARIOS["left-padded"](model)
    else:
        cell = compare(model, full_rings(model))
    return Result(cell.verdict != "green", cell.detail, cell.figure)


def full_rings(model: Any) -> list[Any]:
    """Rows that go round their rings alone, and on in a batch."""
    from ..lab import engine
    from ..lab.scenarios import LENGTHS, decode, prefill_alone, rows_of

    rows = rows_of(model, LENGTHS)
    caches = []
    for row in rows:
        cache = prefill_alone(model, row)
        decode(model, [row], cache, cache[0].window_size + row.fed % 3)
        caches.append(cache)
    decode(model, rows, engine.merge(model, caches), 3)
    return rows
