"""Tiny models of the installed release."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest

from mlx_patches.lab import Cell, Family, LabModel, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.named_scenarios import NAMED

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


def images_cell(scenario: str, family: str) -> Cell:
    """A family's cell in a scenario of images; skips where it does not apply to the release."""
    cell = NAMED[scenario](build_or_skip(f"mlx-vlm:{family}"))
    if cell.verdict == "n/a":
        pytest.skip(cell.detail)
    return cell


def vlm_engine() -> ModuleType:
    """The module of the installed mlx-vlm that has its batch engine, or a skip."""
    if not installed("mlx-vlm"):
        pytest.skip("no mlx-vlm, whose batch engine this is")
    try:
        return importlib.import_module("mlx_vlm.generate.ar")
    except ModuleNotFoundError:
        return importlib.import_module("mlx_vlm.generate")


def prefix_engine() -> ModuleType:
    """The module of the installed mlx-vlm whose batch engine has a prefix cache, or a skip."""
    module = vlm_engine()
    if hasattr(module, "_apc"):
        return module
    pytest.skip("this release has no prefix cache in its batches")
