"""The patch for omlx with real caches, in a stand-in for omlx's scheduler."""

import importlib
import sys

import pytest

from mlx_patches.patches.omlx.boundary_snapshots import patch as boundary_snapshots
from mlx_patches.probes import NotApplicable

from .. import omlx_standin
from ..releases.conftest import is_installed, run_probe

pytestmark = pytest.mark.skipif(not is_installed("mlx-lm"), reason="omlx requires mlx-lm")
PATCH = boundary_snapshots.PATCH
(TARGET,) = PATCH.targets


@pytest.fixture(autouse=True)
def omlx(tmp_path, monkeypatch):
    omlx_standin.install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield
    for name in ("omlx", "omlx.scheduler"):
        sys.modules.pop(name, None)


def test_probe_is_red_then_green(ungated):
    assert run_probe(PATCH, TARGET).red
    manager = ungated(PATCH)
    seen = run_probe(PATCH, TARGET)
    assert not isinstance(seen, NotApplicable)
    assert not seen.red, seen.detail
    manager.restore()
    assert run_probe(PATCH, TARGET).red


@pytest.mark.parametrize("broken", ["copy_cache", "make_handle"])
def test_mutant_turns_probe_red(ungated, monkeypatch, broken):
    monkeypatch.setattr(boundary_snapshots, broken, lambda value: value)
    ungated(PATCH)
    assert run_probe(PATCH, TARGET).red


class Cache:
    def __init__(self):
        self.offset = [0]

    @property
    def state(self):
        return self.offset

    def step(self):
        self.offset += [1]


def test_only_caches_are_copied(ungated):
    ungated(PATCH)
    scheduler = importlib.import_module("omlx.scheduler").Scheduler()
    cache = Cache()
    scheduler._emit_prefill_boundary_snapshot("request", prompt_cache=[cache], total_tokens=1)
    (kept,) = scheduler.snapshots[1]
    assert type(kept) is Cache
    assert kept is not cache
    kept.step()
    assert cache.offset == [0]

    for value in ([], [1, 2], "text", None, (Cache(),), {"a": 1}):
        assert boundary_snapshots.copy_caches(value) is value
