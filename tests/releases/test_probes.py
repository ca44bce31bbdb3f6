"""What every patch must show on every release: the matrix is right, and so is the patch."""

from __future__ import annotations

import pytest

from mlx_patches import _registry
from mlx_patches._ledger import Status
from mlx_patches.probes import NotApplicable

from .conftest import every_patch, every_target, run_probe, verdict
from .mutants import MUTANTS


@pytest.mark.parametrize(("patch", "target"), every_target())
def test_gate_says_what_the_probe_sees(patch, target):
    """Needed where the probe is red, and nowhere else."""
    seen = run_probe(patch, target)
    decided = verdict(patch, target)
    if isinstance(seen, NotApplicable):
        assert not decided.ok, decided.reason
    else:
        assert decided.ok == seen.red, (decided.reason, seen.detail)
        assert decided.status is not Status.DRIFTED, decided.reason


@pytest.mark.parametrize(("patch", "target"), every_target())
def test_green_with_the_patch_red_again_without(patch, target, ungated):
    before = run_probe(patch, target)
    if isinstance(before, NotApplicable):
        assert not verdict(patch, target).ok
        return
    manager = ungated(patch)
    after = run_probe(patch, target)
    assert not after.red, after.detail
    manager.restore()
    assert run_probe(patch, target).red == before.red


@pytest.mark.parametrize("patch", every_patch())
def test_mutant_turns_the_probe_red(patch, ungated, monkeypatch):
    red = [
        target
        for target in patch.targets
        if not isinstance(seen := run_probe(patch, target), NotApplicable) and seen.red
    ]
    MUTANTS[patch.id](monkeypatch)
    ungated(patch)
    for target in red:
        assert run_probe(patch, target).red, target.path


def test_every_patch_has_a_mutant():
    assert set(MUTANTS) == set(_registry.builtin().ids())
