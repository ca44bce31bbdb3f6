"""Feeds a batch cache whose ``offset`` is never evaluated, and counts the edges of its graph."""

from __future__ import annotations

import importlib
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.fixtures import count_edges

STEPS = (64, 256)
WIDTH = 64
WINDOW = 8


def probe(target: Target) -> Result:
    """Red where the graph grows with the steps, or the offset is wrong."""
    import mlx.core as mx

    name = target.name.partition(".")[0]
    kind: Any = getattr(importlib.import_module(target.module), name, None)
    if kind is None or kind.__module__ != target.module:
        raise NotApplicable(f"{target.module} defines no {name}")
    cache = kind(WINDOW, [1, 0]) if "Rotating" in name else kind([1, 0])
    most = dict.fromkeys(STEPS, 0)
    token = mx.zeros((2, 1, 1, WIDTH))
    for step in range(1, max(STEPS) + 1):
        mx.eval(cache.update_and_fetch(token, token))
        for until in STEPS:
            if step <= until:
                most[until] = max(most[until], count_edges(cache.offset, cache.left_padding))
    fed = max(STEPS)
    if (read := cache.offset.tolist()) != [fed - 1, fed]:
        return Result(True, f"the offset [-1, 0] is {read} after {fed} steps")
    few, many = most.values()
    told = f"at most {few} edges in {STEPS[0]} steps, {many} in {STEPS[1]}"
    return Result(many > few, told)
