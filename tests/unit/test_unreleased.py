import sys
from types import ModuleType

import pytest

import mlx_patches
from mlx_patches.activation import git_hosts
from mlx_patches.activation.session import session
from mlx_patches.core.contribution import Contribution
from mlx_patches.patches import catalogue

from .conftest import load, patch_of

ID = "of-git"


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    module = ModuleType("mlx_patches.patches.of_git")
    module.CONTRIBUTION = Contribution(patch_of("attend", id=ID), {"fake-lm": ">=0"})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(git_hosts, "_MODULES", {"fake-lm": ("of_git",)})


def test_audit_marks_patch_as_unverified(fake):
    def row():
        (one,) = [o for o in mlx_patches.audit().as_dict()["patches"] if o["patch"] == ID]
        return one["status"], one["reason"], one["origin"]

    status, reason, origin = row()
    assert (status, origin) == ("disabled", "mlx-patches")
    assert git_hosts.NOTE in reason
    mlx_patches.apply()
    assert row()[0] == "pending"
    assert load("fake_lm.cache").attend(1) == ("patched", 2)
    status, reason, _ = row()
    assert status == "applied"
    assert reason.endswith("; not verified against a release")


def test_absent_without_host(site):
    assert ID not in session().registry
    assert ID not in session().matrix.always
    assert ID not in catalogue.builtin()
