"""Runs rows of Unlimited-OCR past their ring in a batch, and compares them with solo runs."""

from typing import Any

from ....lab import engine
from ....lab.rows import LENGTHS, compare, decode, prefill_solo, rows_of
from ....lab.scenarios import SCENARIOS
from ....probes.kit import Result, Target, require_module, require_own, tiny

FAMILY = "unlimited_ocr"
# The lab's scenario for the last part of a target's name.
_SCENARIOS = {
    "__call__": "left-padded",
    "generate": "engine",
    "extend": "extend",
    "filter": "filter",
    "extract": "extract-late",
    "state": "state",
    "meta_state": "state",
}


def probe(target: Target) -> Result:
    """Red if a row in a batch attends to tokens that a solo run has dropped."""
    require_module(f"mlx_vlm.models.{FAMILY}")
    operation = target.name.rpartition(".")[2]
    if target.supports:
        require_own(target)
    model = tiny(target.distribution, FAMILY)
    if operation == "merge":
        cell = compare(model, merge_full_rings(model))
    else:
        cell = SCENARIOS[_SCENARIOS[operation]](model)
    return Result(cell.verdict != "green", cell.detail, cell.figure)


def merge_full_rings(model: Any) -> list[Any]:
    """Decode single rows until their rings have wrapped, merge them and continue decoding."""
    rows = rows_of(model, LENGTHS)
    caches = []
    for row in rows:
        cache = prefill_solo(model, row)
        decode(model, [row], cache, cache[0].window_size + row.fed % 3)
        caches.append(cache)
    decode(model, rows, engine.merge(model, caches), 3)
    return rows
