"""Advances a recurrent batch cache, and counts the edges of its graph."""

from ....lab.cache_arrays import count_edges
from ....probes.kit import Result, Target, mx, own_class_of, require_own

STEPS = (20, 120)


def probe(target: Target) -> Result:
    """Red if the graph grows with the steps, or the paddings and lengths are wrong."""
    require_own(target)
    cache = own_class_of(target)(1, left_padding=[3, 0])
    cache.prepare(lengths=[200, 150])
    edges = []
    for step in range(1, max(STEPS) + 1):
        cache[0] = mx.zeros((2, 1))
        cache.advance(1)
        if step in STEPS:
            edges.append(count_edges(cache.left_padding, cache.lengths))
    fed = max(STEPS)
    read = cache.left_padding.tolist(), cache.lengths.tolist()
    if read != ([3 - fed, -fed], [200 - fed, 150 - fed]):
        return Result(True, f"[3, 0] and [200, 150] are {read} after {fed} steps")
    detail = " and ".join(
        f"{n} edges after {step} steps" for n, step in zip(edges, STEPS, strict=True)
    )
    return Result(edges[1] > edges[0], detail)
