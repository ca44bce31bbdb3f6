"""Nemotron-H in mlx-lm clips its time steps wrongly, even for a single request.

Why: ``time_step_min`` and ``time_step_max`` are the range in which training initializes the time
    steps, not limits of their values. If a config has no ``time_step_limit``, releases clip every
    step to that range.
How: A config without ``time_step_limit`` gets the limits zero and infinity.
Upstream: mlx-lm 0.31.2 (#1026, commit 6ddfdda1).
Retire when: No supported release is older than mlx-lm 0.31.2.
"""

from typing import Any

from ....core.verbs import Function, Patch, lm_family, wrap

_UNLIMITED = (0.0, float("inf"))


def complete_config(complete: Function, args: Any) -> None:
    if args.time_step_limit is None:
        args.time_step_limit = _UNLIMITED
    complete(args)


PATCH = Patch(
    id="nemotron-time-steps",
    every_model=True,
    wrong_solo="nemotron_h",
    targets=wrap(lm_family("nemotron_h", "ModelArgs.__post_init__"), complete_config),
)
