"""On every release the matrix agrees with each patch's probe, and the patch turns it green."""

import functools

import pytest

from mlx_patches.core.outcome import Status
from mlx_patches.probes import NotApplicable

from ..patches.mutants import mutant_of
from .conftest import every_target, run_probe, targets_of_patches, verdict


@functools.cache
def without(patch, target):
    return run_probe(patch, target)


@pytest.mark.parametrize(("patch", "target"), every_target())
def test_gate_agrees_with_probe_and_patch_repairs(patch, target, ungated):
    before, decided = without(patch, target), verdict(patch, target)
    # A drifted target holds back the patch's others, even if its own probe cannot run.
    assert decided.status is not Status.DRIFTED, decided.reason
    if isinstance(before, NotApplicable):
        # A supporting target, which has no defect, is applied with the patch's others.
        assert target.supports or not decided.ok, decided.reason
        return
    assert decided.ok == before.red, (decided.reason, before.detail)
    manager = ungated(patch)
    after = run_probe(patch, target)
    assert not after.red, after.detail
    manager.restore()
    assert run_probe(patch, target).red == before.red


@pytest.mark.parametrize(("patch", "targets"), targets_of_patches())
def test_mutant_turns_probe_red(patch, targets, ungated, monkeypatch):
    red = [
        target
        for target in targets
        if not isinstance(seen := without(patch, target), NotApplicable) and seen.red
    ]
    mutant_of(patch)(monkeypatch)
    ungated(patch)
    for target in red:
        assert run_probe(patch, target).red, target.path
