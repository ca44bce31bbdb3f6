"""Takes boundary snapshots with omlx's scheduler, and checks them after later steps."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, mx, require_module

_WINDOW = 4
_STEPS = 6


def probe(target: Target) -> Result:
    """Red if a snapshot differs from the caches at the time it was taken."""
    scheduler = require_module(target.module).Scheduler
    cache = require_module("mlx_lm.models.cache")
    window = cache.RotatingKVCache(max_size=_WINDOW)
    recurrent = cache.ArraysCache(2)
    kept: list[Any] = []
    # The only scheduler attributes that the method uses, in every version of omlx examined.
    stub = SimpleNamespace(
        request_id_to_uid={"one": 1},
        _on_prefill_boundary_snapshot=lambda request, caches, count: kept.append(caches),
    )
    held: list[list[float]] = []
    for step in range(_STEPS):
        window.update_and_fetch(*[mx.full((1, 1, 1, 2), float(step))] * 2)
        recurrent[0] = mx.full((1, 2), float(step))
        held.append(_read_content([window, recurrent]))
        request = SimpleNamespace(request_id="one")
        scheduler._emit_prefill_boundary_snapshot(stub, request, [window, recurrent], step + 1)
    for step, (caches, before) in enumerate(zip(kept, held, strict=True)):
        if (now := _read_content(caches)) != before:
            return Result(True, f"boundary {step + 1}: it had {before}, now it has {now}")
    return Result(False, f"{_STEPS} boundary snapshots are unchanged")


def _read_content(caches: list[Any]) -> list[float]:
    from mlx.utils import tree_flatten

    numbers: list[float] = []
    for cache in caches:
        state = [array for _, array in tree_flatten(cache.state) if isinstance(array, mx.array)]
        numbers += [number for array in state for number in array.flatten().tolist()]
        numbers.append(float(getattr(cache, "offset", 0)))
    return numbers
