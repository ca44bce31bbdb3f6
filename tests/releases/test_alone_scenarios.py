"""The lab's scenarios of one request alone: right models, known defects, and planted ones."""

from __future__ import annotations

import functools
import importlib

import pytest

import mlx_patches
from mlx_patches.lab import Cell
from mlx_patches.lab.alone_scenarios import ALONE
from mlx_patches.lab.child import every_patch

from .conftest import is_tested
from .models import build_or_skip


@pytest.fixture
def patched():
    mlx_patches.apply(patches=every_patch())
    yield
    mlx_patches.restore()


def run(scenario: str, family: str) -> Cell:
    if not is_tested(family.partition(":")[0]):
        pytest.skip("this set tests another package")
    return ALONE[scenario](build_or_skip(family))


def off(value):
    """A little off."""
    return value * 1.125


def plant(monkeypatch, place: str, around) -> None:
    """Put ``around(original, ...)`` in place of ``module:Class.method``."""
    module, path = place.split(":")
    holder = importlib.import_module(module)
    *parts, name = path.split(".")
    for part in parts:
        holder = getattr(holder, part)
    original = getattr(holder, name)

    @functools.wraps(original)
    def inside(*args, **kwargs):
        return around(original, *args, **kwargs)

    monkeypatch.setattr(holder, name, inside)


RIGHT = ("mlx-lm:llama", "mlx-lm:gemma3_text", "mlx-lm:qwen3_next", "mlx-vlm:gemma3")


@pytest.mark.parametrize("scenario", ALONE)
@pytest.mark.parametrize("family", RIGHT)
def test_a_right_family_is_green(scenario, family, patched):
    cell = run(scenario, family)
    assert cell.verdict == "green", cell.detail


def one_token_off(original, self, keys, values):
    """A decode step's keys."""
    return original(self, off(keys) if keys.shape[2] == 1 else keys, values)


def second_piece_off(original, self, keys, values):
    """The keys of a piece that is not the first."""
    later = self.offset and keys.shape[2] > 1
    return original(self, off(keys) if later else keys, values)


@pytest.mark.parametrize("fault", [one_token_off, second_piece_off])
@pytest.mark.parametrize("family", ["mlx-lm:llama", "mlx-vlm:qwen3_vl"])
def test_own_prefill_sees(fault, family, patched, monkeypatch):
    package = family.partition(":")[0].replace("-", "_")
    build_or_skip(family)
    plant(monkeypatch, f"{package}.models.cache:KVCache.update_and_fetch", fault)
    cell = run("own-prefill", family)
    assert cell.verdict == "red"
    assert ("in pieces" in cell.detail) is (fault is second_piece_off)
