"""A broken version of ``yarn-range``: with it the probe must be red."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from mlx_patches.patches.positions.yarn_range import patch as yarn_range


def a_range_of_other_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yarn_range, "math", SimpleNamespace(log=math.log, pi=3.0))


MUTANTS = {"yarn-range": a_range_of_other_pairs}
