"""Gemma 3n in mlx-vlm crashes in every batch.

Why: ``Gemma3nAltUp.correct`` multiplies states of shape (inputs, rows, tokens, width) by
    coefficients of shape (rows, tokens, inputs). The axes line up only for a single row.
How: Each token is corrected independently of the others, so the batch is reshaped into one long row
    and back. The arithmetic stays the same. A single row is passed on unchanged.
Upstream: mlx-vlm 0.5.0. mlx-lm never had the defect.
Retire when: No supported release is older than mlx-vlm 0.5.0.
"""

from typing import Any

from ....core.verbs import Function, Patch, vlm_family, wrap


def correct_as_one_row(correct: Function, altup: Any, predictions: Any, activated: Any) -> Any:
    """Return corrected states (inputs, rows, tokens, width); activated (rows, tokens, width)."""
    if activated.shape[0] == 1:
        return correct(altup, predictions, activated)
    states = correct(altup, flatten_rows(predictions), flatten_rows(activated))
    return states.reshape(predictions.shape)


def flatten_rows(states: Any) -> Any:
    """Reshape states (..., rows, tokens, width) to (..., 1, rows * tokens, width)."""
    *outer, rows, tokens, width = states.shape
    return states.reshape(*outer, 1, rows * tokens, width)


PATCH = Patch(
    id="altup-batch",
    severity="crash",
    targets=wrap(vlm_family("gemma3n", "Gemma3nAltUp.correct"), correct_as_one_row),
)
