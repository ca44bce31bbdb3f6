"""Modules and tiny models of the installed release; a test is skipped if it lacks them."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.core.packages import DISTRIBUTIONS
from mlx_patches.lab import Cell, Family, LabModel, NotBuilt
from mlx_patches.lab.build import build
from mlx_patches.lab.named_scenarios import NAMED
from mlx_patches.probes import NotApplicable

from .conftest import is_installed, is_tested


@contextmanager
def or_skip() -> Iterator[None]:
    """Skips if the release lacks a name of the block or the decorated function."""
    try:
        yield
    except (NotApplicable, NotBuilt) as reason:
        pytest.skip(str(reason))


def module_or_skip(name: str, *having: str) -> ModuleType:
    """A module of the installed release; skips if it is missing or lacks one of these names."""
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as reason:
        if not f"{name}.".startswith(f"{reason.name}."):
            raise  # the release has it, but lacks one of its imports
        pytest.skip(str(reason))
    for one in having:
        if not hasattr(module, one):
            pytest.skip(f"this release's {name} has no {one}")
    return module


def present(*modules: str) -> list[str]:
    here = filter(lambda one: is_tested(DISTRIBUTIONS[one.partition(".")[0]]), modules)
    return list(filter(source_file, here))


@or_skip()
def build_or_skip(family: Family | str) -> LabModel:
    """A family's tiny model, as ``mlx-lm:llama``; skips if the release has none."""
    if isinstance(family, str):
        family = Family(*family.split(":"))
    if not is_installed(family.distribution):
        pytest.skip(f"{family.distribution} is not installed")
    return build(family)


def applicable(cell: Cell) -> Cell:
    if cell.verdict == "n/a":
        pytest.skip(cell.detail)
    return cell


def images_cell(scenario: str, family: str) -> Cell:
    return applicable(NAMED[scenario](build_or_skip(f"mlx-vlm:{family}")))


def vlm_engine() -> ModuleType:
    """The module of the installed mlx-vlm that has its batch engine, or a skip."""
    try:
        return importlib.import_module("mlx_vlm.generate.ar")
    except ModuleNotFoundError:
        return module_or_skip("mlx_vlm.generate")


def prefix_engine() -> ModuleType:
    """The module of the installed mlx-vlm whose batch engine has a prefix cache, or a skip."""
    return module_or_skip(vlm_engine().__name__, "_apc")
