"""The contents of a batch's caches: layers, arrays, dtypes and the unevaluated graph."""

import io
from collections.abc import Iterable, Iterator
from typing import Any

from ..core.arrays import mx
from ..core.packages import MODELS


def layers(cache: Iterable[Any]) -> list[Any]:
    """The layers of a cache; nested cache lists are flattened in order."""
    found: list[Any] = []
    for layer in cache:
        inner = getattr(layer, "caches", None)
        found += layers(inner) if isinstance(inner, (list, tuple)) else [layer]
    return found


def arrays(held: Any) -> list[Any]:
    """Every array in a cache or a list of caches, without duplicates."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    stack = [held]
    while stack:
        one = stack.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, mx.array):
            found[id(one)] = one
        else:
            stack += _parts(one)
    return list(found.values())


def _parts(one: Any) -> Iterator[Any]:
    if isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, (list, tuple)):
        yield from one
    elif type(one).__module__.startswith((*MODELS, "mlx_patches")):
        yield from getattr(one, "__dict__", {}).values()
        for name in getattr(one, "__slots__", ()):
            yield getattr(one, name, None)


def count_edges(*arrays: Any) -> int:
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return text.getvalue().count("->")


def float_types(layer: Any) -> set[str]:
    kinds = {one.dtype for one in arrays(layer) if mx.issubdtype(one.dtype, mx.floating)}
    return {str(kind).rpartition(".")[2] for kind in kinds}
