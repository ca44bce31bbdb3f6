"""``top_p_sampling`` of mlx-vlm raises in a batch.

Why
    The function sorts the tokens of all rows, but then reorders them as if there was one row.
    Several rows raise "Cannot squeeze axis 0 with size 2".
How
    A batch is sampled row by row, each row as if alone.
Upstream
    mlx-vlm 0.5.0 reorders each row by its own order.
Retire when
    No supported release is older than mlx-vlm 0.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def sampled(top_p_sampling: Callable[..., Any], logits: Any, *args: Any, **kwargs: Any) -> Any:
    """Token ids (rows,) that are drawn from logits (rows, vocabulary), row by row."""
    if not several(logits):
        return top_p_sampling(logits, *args, **kwargs)
    import mlx.core as mx

    rows = (logits[row : row + 1] for row in range(logits.shape[0]))
    return mx.concatenate([top_p_sampling(row, *args, **kwargs) for row in rows])


def several(logits: Any) -> bool:
    """Whether the logits have more than one row."""
    return bool(logits.ndim == 2 and logits.shape[0] > 1)


PATCH = Patch(
    id="top-p-rows",
    severity="crash",
    every_model=True,
    summary="mlx-vlm: top_p sampling crashes in a batch",
    targets=(Target("mlx-vlm", "mlx_vlm.sample_utils", "top_p_sampling", around(sampled)),),
)
