"""A broken version of ``nemotron-time-steps``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.nemotron_time_steps import patch as nemotron_steps


def limits_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nemotron_steps, "_UNLIMITED", None)


MUTANTS = {"nemotron-time-steps": limits_that_stay}
