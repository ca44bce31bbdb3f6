"""Gemma 3n crashes for more than one row.

Why
    ``Gemma3nAltUp.correct`` puts its coefficients of shape (rows, tokens, inputs) before states
    of shape (inputs, rows, tokens, width) in an order that only fits one row.
How
    Each token is corrected independently of the others, so the rows are reshaped into one long
    row and back: only views, and the same arithmetic. A single row is passed on unchanged.
Upstream
    mlx-vlm 0.5.0. mlx-lm never had it.
Retire when
    No supported release is older than mlx-vlm 0.5.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def corrected(
    correct: Callable[[Any, Any, Any], Any], altup: Any, predictions: Any, activated: Any
) -> Any:
    """Return corrected states (inputs, rows, tokens, width); activated (rows, tokens, width)."""
    if activated.shape[0] == 1:
        return correct(altup, predictions, activated)
    states = correct(altup, one_row(predictions), one_row(activated))
    return states.reshape(predictions.shape)


def one_row(states: Any) -> Any:
    """Reshape states (..., rows, tokens, width) to (..., 1, rows * tokens, width)."""
    *outer, rows, tokens, width = states.shape
    return states.reshape(*outer, 1, rows * tokens, width)


PATCH = Patch(
    id="altup-batch",
    severity="crash",
    summary="Gemma 3n in mlx-vlm crashes in every batch",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.gemma3n.language",
            "Gemma3nAltUp.correct",
            around(corrected),
        ),
    ),
)
