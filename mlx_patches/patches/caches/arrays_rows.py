"""A recurrent batch keeps the padding of rows that left it, and none of those that joined.

Why
    ``ArraysCache.filter`` and ``extend`` change the states of a batch, and leave
    ``left_padding`` as it was. The next mask has as many rows as the batch once had: the model
    dies, or masks a row as another one.
How
    The padding goes through ``filter`` with its row. Rows that join bring theirs, or none.
Upstream
    mlx-lm 0.30.4 stopped dropping the padding there, and 0.31.3 has it follow the rows.
Retire when
    No supported release is older than mlx-lm 0.31.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

NAMES = ("left_padding", "lengths")


def filtered(keep: Callable[[Any, Any], None], cache: Any, batch_indices: Any) -> None:
    """``filter`` that takes the rows' padding along."""
    padding = taken(cache)
    keep(cache, batch_indices)
    for name, value in padding.items():
        setattr(cache, name, of_rows(value, batch_indices))


def extended(extend: Callable[[Any, Any], None], cache: Any, other: Any) -> None:
    """``extend`` that takes the rows' left padding along."""
    both = (cache, other)
    rows = [count(one) for one in both]
    own, more = (taken(one).get("left_padding") for one in both)
    extend(cache, other)
    if own is not None or more is not None:
        cache.left_padding = joined((own, more), rows)


def taken(cache: Any) -> dict[str, Any]:
    """What a cache knows of its rows' padding; it knows none of it afterwards."""
    found = {name: getattr(cache, name, None) for name in NAMES}
    known = {name: value for name, value in found.items() if getattr(value, "ndim", 0)}
    for name in known:
        setattr(cache, name, None)
    return known


def of_rows(padding: Any, rows: Any) -> Any:
    """The padding of the rows that stay."""
    return padding[rows]


def joined(parts: tuple[Any, Any], rows: list[int]) -> Any:
    """The left padding of two batches' rows, none where a batch has none."""
    import mlx.core as mx

    return mx.concatenate(
        [
            mx.zeros((number,), mx.int32) if part is None else part
            for part, number in zip(parts, rows, strict=True)
        ]
    )


def count(cache: Any) -> int:
    """How many rows a cache has."""
    known = [cache.left_padding, *cache.cache]
    return next((int(one.shape[0]) for one in known if getattr(one, "ndim", 0)), 0)


PATCH = Patch(
    id="arrays-rows",
    summary="a recurrent batch masks with the padding of rows that have left it",
    targets=tuple(
        Target(distribution, module, f"ArraysCache.{name}", factory)
        for distribution, module in (
            ("mlx-lm", "mlx_lm.models.cache"),
            ("mlx-vlm", "mlx_vlm.models.cache"),
        )
        for name, factory in (("filter", around(filtered)), ("extend", around(extended)))
    ),
    probe="mlx_patches.probes.arrays_rows:probe",
    module=__name__,
)
