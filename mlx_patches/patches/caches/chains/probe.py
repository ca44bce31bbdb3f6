"""Feeds a batch cache whose ``offset`` is never evaluated, and counts the edges of its graph."""

from ....lab.cache_arrays import count_edges
from ....probes.kit import Result, Target, make_batch, mx, own_class_of

STEPS = (64, 256)
WIDTH = 64
WINDOW = 8


def probe(target: Target) -> Result:
    """Red if the graph grows with the steps, or the offset is wrong."""
    cache = make_batch(own_class_of(target), [1, 0], WINDOW)
    most = dict.fromkeys(STEPS, 0)
    token = mx.zeros((2, 1, 1, WIDTH))
    for step in range(1, max(STEPS) + 1):
        mx.eval(cache.update_and_fetch(token, token))
        for until in STEPS:
            if step <= until:
                most[until] = max(most[until], count_edges(cache.offset, cache.left_padding))
    steps = max(STEPS)
    if (read := cache.offset.tolist()) != [steps - 1, steps]:
        return Result(True, f"the offset [-1, 0] is {read} after {steps} steps")
    few, many = most.values()
    detail = f"at most {few} edges in {STEPS[0]} steps, {many} in {STEPS[1]}"
    return Result(many > few, detail)
