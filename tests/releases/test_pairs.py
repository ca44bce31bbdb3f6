"""Two patches at one attribute can be removed in either order and reapplied."""

import sys
from itertools import permutations

import pytest

import mlx_patches
from mlx_patches.core.manager import Manager
from mlx_patches.patches import catalogue
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.child import open_gate
from tests.conformance import assert_same, import_modules, snapshot

from .conftest import every_patch, run_probe

pytestmark = pytest.mark.slow

PATCHES = [parameter.values[0] for parameter in every_patch()]


def list_shared_attributes():
    """(path, patch, other) for every two patches with layers at one attribute here."""
    for patch in PATCHES:
        import_modules(patch)
    manager = Manager(open_gate(*PATCHES), catalogue.builtin())
    try:
        for patch in PATCHES:
            manager.apply(patch)
        held = {site.path: [layer.patch for layer in site.layers] for site in manager.sites()}
    finally:
        manager.restore()
    # A layer does not have to work in code that is fixed, where the gate leaves it out.
    every = mlx_patches.apply(patches=[patch.id for patch in PATCHES], dry_run=True)
    fixed = {(one.target, one.patch) for one in every if one.status == "fixed-upstream"}
    held = {path: [id_ for id_ in ids if (path, id_) not in fixed] for path, ids in held.items()}
    by_id = {patch.id: patch for patch in PATCHES}
    # A pair has the same probes at each attribute that it shares: one attribute is enough.
    pairs: dict[tuple[str, str], str] = {}
    for path, ids in held.items():
        for pair in permutations(ids, 2):
            pairs.setdefault(pair, path)
    return [
        pytest.param(path, by_id[one], by_id[other], id=f"{path}-{one}-{other}")
        for (one, other), path in pairs.items()
    ]


def probe_path(path, *patches):
    """The results of the patches' probes at an attribute: red or not, or why not applicable."""
    found = []
    for patch in patches:
        for target in patch.targets:
            if target.path == path:
                answer = run_probe(patch, target)
                found.append(answer.red if not isinstance(answer, NotApplicable) else str(answer))
    return found


@pytest.fixture
def manager():
    made = Manager(open_gate(*PATCHES), catalogue.builtin())
    yield made
    made.restore()


def pytest_generate_tests(metafunc):
    # Only with slow tests: it imports and patches all of the release.
    runs = "not slow" not in metafunc.config.getoption("markexpr")
    metafunc.parametrize(("path", "patch", "other"), list_shared_attributes() if runs else [])


def test_pairs_are_independent(path, patch, other, manager):
    pair = (patch, other)
    before = [snapshot(one) for one in pair]
    manager.apply(other)
    results = probe_path(path, *pair)
    manager.restore()

    for one in pair:
        manager.apply(one)
    live, both = live_object(path), probe_path(path, *pair)
    manager.restore([patch.id])
    assert [layer.patch for layer in site_of(manager, path).layers] == [other.id]
    assert probe_path(path, *pair) == results
    manager.apply(patch)
    assert live_object(path) is live or is_added(patch, other, path)
    assert probe_path(path, *pair) == both
    manager.restore([patch.id])
    manager.restore([other.id])
    for one, objects in zip(pair, before, strict=True):
        assert_same(snapshot(one), objects)


def site_of(manager, path):
    return next(site for site in manager.sites() if site.path == path)


def live_object(path):
    module, _, name = path.partition(":")
    scope = sys.modules[module]
    for part in name.split("."):
        scope = vars(scope).get(part)
    return scope


def is_added(patch, other, path):
    """Whether one of them adds the attribute; taking that patch out then removes it."""
    return any(
        t.defines_new_attribute for one in (patch, other) for t in one.targets if t.path == path
    )
