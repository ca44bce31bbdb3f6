"""Tiny models of the installed release."""

from __future__ import annotations

import pytest

from mlx_patches.lab import Family, LabModel, NotBuilt
from mlx_patches.lab.build import build

from .conftest import installed


def build_or_skip(family: Family | str) -> LabModel:
    """A family's tiny model; skips where the release has none. ``mlx-lm:llama`` is a name."""
    if isinstance(family, str):
        family = Family(*family.split(":"))
    if not installed(family.distribution):
        pytest.skip(f"{family.distribution} is not installed")
    try:
        return build(family)
    except NotBuilt as reason:
        pytest.skip(str(reason))
