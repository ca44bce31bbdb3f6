"""A broken version of ``rope-scaling``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.rope_scaling import patch as rope_scaling


def scalings_that_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope_scaling, "KINDS", ())


MUTANTS = {"rope-scaling": scalings_that_are_not_read}
