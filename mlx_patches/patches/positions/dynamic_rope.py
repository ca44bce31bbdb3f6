"""InternLM dies in every batch: its rope asks whether one position is past a limit.

Why
    Dynamic NTK scaling changes the base of the rotation once a text is longer than the model
    was trained for: ``if offset + ... > max_position_embeddings``. The offsets of a batch are
    an array, which has no truth value.
How
    While every row is below the limit, the comparison sees the largest of them. Where one is
    above, rows are rotated one by one, each with its own base, as they would be alone.
Upstream
    mlx-lm 0.32.0 uses another rope unless the config asks for this one; not fixed there.
Retire when
    The rope takes offsets by row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

_PLACES = (
    ("mlx-lm", "mlx_lm.models.internlm2"),
    ("mlx-lm", "mlx_lm.models.internlm3"),
    ("mlx-vlm", "mlx_vlm.models.internlm2.language"),
    ("mlx-vlm", "mlx_vlm.models.internlm3.language"),
)


def rotated(call: Callable[..., Any], rope: Any, x: Any, offset: Any = 0) -> Any:
    """``x`` (rows, heads, length, width), rotated to the positions from ``offset`` on."""
    if not getattr(offset, "ndim", 0):
        return call(rope, x, offset)
    import mlx.core as mx

    rows = offset.tolist()
    if x.shape[1] + max(rows) <= rope.max_position_embeddings:
        return call(rope, x, counted(offset, max(rows)))
    return mx.concatenate([call(rope, x[i : i + 1], row) for i, row in enumerate(rows)])


def counted(offset: Any, largest: int) -> Any:
    """Offsets by row, of which the sum with a number is that with the largest."""
    found = _counted()(offset)
    found.largest = largest
    return found


@functools.cache
def _counted() -> Any:
    import mlx.core as mx

    class Counted(mx.array):  # type: ignore[misc]
        largest: int

        def __add__(self, other: Any) -> Any:
            return self.largest + other

        __radd__ = __add__

    return Counted


PATCH = Patch(
    id="dynamic-rope",
    summary="InternLM dies in every batch: its rope takes the rows' offsets for one number",
    targets=tuple(
        Target(distribution, module, "DynamicNTKScalingRoPE.__call__", around(rotated))
        for distribution, module in _PLACES
    ),
    probe="mlx_patches.probes.dynamic_rope:probe",
    module=__name__,
)
