"""Qwen3-Next and Kimi Linear in mlx-lm crash in a batch on machines without Metal.

Why: Without Metal, and in training, the gated delta rule runs step by step. A step's mask has one
    value for each row, but is broadcast along the last axis of the states (rows, heads, values,
    keys): it raises or, with as many rows as keys, masks by another row's padding.
How: The step runs without a mask; a row that has no token there then gets its old state back.
Upstream: mlx-lm 0.30.4 adds the missing axes to the mask.
Retire when: No supported release is older than mlx-lm 0.30.4.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, wrap


def keep_masked_states(
    step: Function, q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, mask: Any = None
) -> Any:
    """The output (rows, heads, values) of one step, and the state after it."""
    if not is_per_row(mask):
        return step(q, k, v, g, beta, state, mask)
    y, after = step(q, k, v, g, beta, state)
    return y, mx.where(mask[:, None, None, None], after, state)


def is_per_row(mask: Any) -> bool:
    """Whether a mask is (rows,), without the other axes of the states."""
    return mask is not None and mask.ndim == 1


PATCH = Patch(
    id="gated-delta-mask",
    severity="crash",
    targets=wrap("mlx_lm.models.gated_delta:_gated_delta_step_ops", keep_masked_states),
)
