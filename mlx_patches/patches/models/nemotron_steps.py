"""Nemotron-H forgets too fast or too slowly: its time steps are cut to a range of training.

Why
    ``time_step_min`` and ``time_step_max`` of a config say how training begins. Releases take
    them for the limits of every step where the config names no ``time_step_limit``.
How
    A config without limits has none: from zero to infinity.
Upstream
    mlx-lm 0.31.2 (#1026, commit 6ddfdda1).
Retire when
    No supported release is older than mlx-lm 0.31.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around

_UNLIMITED = (0.0, float("inf"))


def completed(complete: Callable[[Any], None], args: Any) -> None:
    """A config, as it is completed."""
    if args.time_step_limit is None:
        args.time_step_limit = _UNLIMITED
    complete(args)


PATCH = Patch(
    id="nemotron-time-steps",
    summary="Nemotron-H cuts its time steps to the range that training began with",
    targets=(
        Target("mlx-lm", "mlx_lm.models.nemotron_h", "ModelArgs.__post_init__", around(completed)),
    ),
    probe="mlx_patches.probes.nemotron_steps:probe",
    module=__name__,
)
