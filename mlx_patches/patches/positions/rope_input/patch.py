"""LongRoPE and YaRN scale their input array in place, so a later read of it is wrong.

Why
    The ropes scale their input with ``x[..., :dims] = ...``, which changes the caller's array
    too. A layer that uses the array again reads scaled values; after two calls, scaled twice.
How
    The rope gets a new handle of the same array. Nothing is copied or added to the graph.
Upstream
    mlx-lm 0.31.2 (#1003, commit 2146e4ed).
Retire when
    No supported release is older than mlx-lm 0.31.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.handles import make_handle


def rotated(call: Callable[..., Any], rope: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """``x`` (rows, heads, length, width) rotated; the caller's array does not change."""
    return call(rope, make_handle(x), *args, **kwargs)


PATCH = Patch(
    id="rope-input",
    every_model=True,
    changes_alone=True,
    summary=(
        "mlx-lm, LongRoPE and YaRN models: wrong queries and keys if a model reads them after RoPE"
    ),
    targets=tuple(
        Target("mlx-lm", "mlx_lm.models.rope_utils", f"{name}.__call__", around(rotated))
        for name in ("SuScaledRoPE", "YarnRoPE")
    ),
)
