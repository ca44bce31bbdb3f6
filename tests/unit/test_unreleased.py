"""Patches for hosts that have no release: omlx."""

from __future__ import annotations

import importlib
import sys

import pytest

import mlx_patches
from mlx_patches.activation import git_hosts
from mlx_patches.activation.session import session
from mlx_patches.patches import catalogue
from mlx_patches.patches.omlx.boundary_snapshots import patch as boundary_snapshots

from .. import omlx_standin
from .conftest import load

ID = "boundary-snapshots"


class Array:
    """As with mx.array, ``+=`` changes the object in place, for every name that refers to it."""

    dtype = "float32"

    def __init__(self, value):
        self.value = value

    def __copy__(self):
        return Array(self.value)

    def __iadd__(self, other):
        self.value += other
        return self


class Cache:
    def __init__(self):
        self.offset = Array(0)
        self.cache = [Array(0), None]

    @property
    def state(self):
        return self.offset.value, self.cache[0].value

    def step(self):
        self.offset += 1
        self.cache[0] += 10


class KVCache(Cache):
    pass


class CacheList:
    def __init__(self, *caches):
        self.caches = caches

    @property
    def state(self):
        return [cache.state for cache in self.caches]

    def step(self):
        for cache in self.caches:
            cache.step()


@pytest.fixture
def omlx(site):
    omlx_standin.install(site.root)
    site.packages.add("omlx")
    importlib.invalidate_caches()


def capture(steps=3):
    """The snapshots of some boundaries, and what the caches held at each."""
    scheduler = load("omlx.scheduler").Scheduler()
    caches = [Cache(), KVCache(), CacheList(Cache(), Cache())]
    held = {}
    for boundary in range(steps):
        for cache in caches:
            cache.step()
        scheduler._emit_prefill_boundary_snapshot("request", caches, boundary)
        held[boundary] = [None if type(c) is KVCache else c.state for c in caches]
    found = {n: [c and c.state for c in kept] for n, kept in scheduler.snapshots.items()}
    return found, held


def test_a_snapshot_is_what_the_caches_held(omlx):
    found, held = capture()
    assert found[0] == found[2] != held[0], "the stand-in has not the defect"
    mlx_patches.apply()
    found, held = capture()
    assert found == held
    mlx_patches.restore()
    found, held = capture()
    assert found != held


def test_the_caches_keep_their_class_and_go_on(omlx):
    mlx_patches.apply()
    scheduler = load("omlx.scheduler").Scheduler()
    cache = Cache()
    scheduler._emit_prefill_boundary_snapshot("request", prompt_cache=[cache], total_tokens=1)
    (kept,) = scheduler.snapshots[1]
    assert type(kept) is Cache
    assert kept is not cache
    kept.step()
    assert cache.state == (0, 0)


def test_what_is_no_list_of_caches_passes_as_it_is():
    for value in ([], [1, 2], "text", None, (Cache(),), {"a": 1}):
        assert boundary_snapshots.frozen(value) is value


def test_without_copies_snapshots_move_again(omlx, monkeypatch):
    monkeypatch.setattr(boundary_snapshots, "copy_cache", lambda value: value)
    mlx_patches.apply()
    found, held = capture()
    assert found != held


def test_the_audit_says_that_it_is_not_verified(omlx):
    def row():
        (one,) = [o for o in mlx_patches.audit().as_dict()["patches"] if o["patch"] == ID]
        return one["status"], one["reason"], one["origin"]

    status, reason, origin = row()
    assert (status, origin) == ("disabled", "mlx-patches")
    assert git_hosts.NOTE in reason
    mlx_patches.apply()
    assert row()[0] == "pending"
    load("omlx.scheduler")
    status, reason, _ = row()
    assert status == "applied"
    assert reason.endswith("; not verified against a release")


def test_it_can_be_switched_off(omlx, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_DISABLE", ID)
    mlx_patches.apply()
    found, held = capture()
    assert found != held


def test_it_is_not_there_without_its_host(site):
    assert ID not in session().registry
    assert ID not in session().matrix.always
    assert ID not in catalogue.builtin()


def test_it_is_documented():
    for part in ("Why", "How", "Upstream", "Retire when"):
        assert f"\n{part}\n" in sys.modules[boundary_snapshots.__name__].__doc__
