"""A batch of MiniCPM-V 4.6 or of Qwen 3.5 without images fails with the deltas of fewer rows.

Why
    The language model of Qwen 3.5 stores rope deltas, one a row, on itself: those that it
    computes, and from 0.6.5 on those that it is given. MiniCPM-V 4.6 stores a batch's with its
    embeddings. A prompt that comes without its own is read with them, whichever rows they are of.
    A decode step of other rows, or the next prompts' embeddings, come between two pieces: where
    the batch that is being read has more rows, its next piece raises.
How
    Before a call that would raise, one delta of 0 is stored, which the model uses for any rows. A
    row that has another delta is fed with it or with positions, in every host.
Upstream
    Not reported; present in mlx-vlm 0.7.10.
Retire when
    The probe is green without the patch for every supported release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def has_too_few(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether a call would use the stored deltas, and they are of several rows but too few."""
    if kwargs.get("rope_deltas") is not None or kwargs.get("position_ids") is not None:
        return False
    stored = getattr(model, "_rope_deltas", None)
    return stored is not None and 1 < stored.size < inputs.shape[0]


def with_one(call: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the language model with one delta in place of those of too few rows."""
    if has_too_few(model, inputs, *args, **kwargs):
        model._rope_deltas = delta_for_all(model._rope_deltas)
    return call(model, inputs, *args, **kwargs)


def delta_for_all(stored: Any) -> Any:
    """The delta (1, 1) of rows that came without deltas, of the same type as those stored."""
    import mlx.core as mx

    return mx.zeros((1, 1), stored.dtype)


PATCH = Patch(
    id="minicpm-deltas",
    severity="crash",
    summary=(
        "MiniCPM-V 4.6 and Qwen3.5 in mlx-vlm: chunked prefill crashes if a batch has other rows"
    ),
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.qwen3_5.language",
            "LanguageModel.__call__",
            around(with_one),
            when=has_too_few,
        ),
    ),
    probe=".probe_minicpm:probe",
)
