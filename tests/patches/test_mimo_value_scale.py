"""A broken version of ``mimo-value-scale``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.models.mimo_value_scale import patch as mimo_values


def scales_that_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimo_values, "scale_of", lambda attention: None)


MUTANTS = {"mimo-value-scale": scales_that_are_dropped}
