"""A broken version of ``glm-rotary``: with it the probe must be red."""

from __future__ import annotations

import pytest

from mlx_patches.patches.positions.glm_rotary import patch as glm_rotary


def heads_that_are_rotated_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glm_rotary, "factor_of", lambda params: 1.0)


MUTANTS = {"glm-rotary": heads_that_are_rotated_whole}
