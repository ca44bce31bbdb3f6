"""A batch of MiniCPM-V 4.6 that is read in pieces fails when the next prompts are embedded.

Why
    With each prompts' embeddings the model stores a rope delta for each of their rows on itself.
    They are all 0. But prompts are embedded while a batch of others is read, and where that has
    more rows, its next piece finds too few deltas and raises.
How
    One delta is stored: the model, and engines that read it, use a single one for any rows.
    Not repaired: from 0.6.8 on the model also stores the deltas that a decode step of other rows
    is given, with the same effect on a batch of more rows.
Upstream
    Not reported; present in mlx-vlm 0.7.10.
Retire when
    The probe is green without the patch for every supported release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around


def store_one(store: Callable[..., None], model: Any, *args: Any, **kwargs: Any) -> None:
    """Store the positions of prompts on the language model, and one delta, which is 0."""
    store(model, *args, **kwargs)
    language_model = model.language_model
    language_model._rope_deltas = keep_one(language_model._rope_deltas)


def keep_one(deltas: Any) -> Any:
    """The first of some rows' deltas (rows, 1)."""
    return deltas[:1]


PATCH = Patch(
    id="minicpm-deltas",
    severity="crash",
    summary="MiniCPM-V 4.6: the next prompts make the batch that is being read in pieces fail",
    targets=(
        Target(
            "mlx-vlm",
            "mlx_vlm.models.minicpmv4_6.minicpmv4_6",
            "Model._set_position_state",
            around(store_one),
        ),
    ),
    probe=".probe_minicpm:probe",
    module=__name__,
)
