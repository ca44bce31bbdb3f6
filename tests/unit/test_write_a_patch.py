"""docs/write-a-patch.md: runs the code on the page."""

import importlib
import linecache
import re
import sys
import textwrap
import tomllib
from pathlib import Path

import matrix_file
import pytest
import yaml

import mlx_patches
from mlx_patches.activation.session import session
from mlx_patches.core.manager import Manager
from mlx_patches.core.registry import Registry
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import caches
from mlx_patches.probes.child import open_gate, probe_target
from tests.conformance import Case, Conformance

from .conftest import document, load, statuses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-patch.md").read_text()
# The first line of a code block names its file.
BLOCKS = {
    (language, file): code
    for language, file, code in re.findall(r"```(\w+)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL)
}
FOLDER = "mlx_patches/patches/caches/toy_offset"


@pytest.fixture
def toy(site):
    files = {file: BLOCKS["python", file] for file in ("toy_lm/cache.py", "toy_lm/model.py")}
    site.install("toy-lm", "1.0", files)
    return site


def upgrade(toy):
    diff = BLOCKS["diff", "toy_lm/cache.py"].splitlines()
    (old,), (new,) = ([line[1:] for line in diff if line.startswith(sign)] for sign in "-+")
    toy.forget()
    (toy.root / "toy_lm-1.0.dist-info" / "METADATA").unlink()
    assert old in BLOCKS["python", "toy_lm/cache.py"]
    toy.install(
        "toy-lm", "1.1", {"toy_lm/cache.py": BLOCKS["python", "toy_lm/cache.py"].replace(old, new)}
    )
    linecache.clearcache()


@pytest.fixture
def ours(toy, monkeypatch):
    """The patch of the page, imported like one of this repository."""
    folder = toy.root / FOLDER
    folder.mkdir(parents=True)
    for name in ("patch.py", "probe.py"):
        (folder / name).write_text(BLOCKS["python", f"{FOLDER}/{name}"])
    monkeypatch.setattr(caches, "__path__", [*caches.__path__, str(folder.parent)])
    known = set(sys.modules)
    place = FOLDER.replace("/", ".")
    registry = Registry({"toy-offset": {"place": f"{place}.patch"}})
    (patch,) = registry
    yield patch
    for name in set(sys.modules) - known:
        if "toy" in name:
            del sys.modules[name]


def probe(patch, *applied):
    """The probe's verdict on each target; with a manager, after it applied the patch."""
    return [probe_target(patch, target, *applied)["verdict"] for target in patch.targets]


def test_probe_is_red_then_green_in_next_release(ours, toy):
    assert probe(ours) == ["red"]
    upgrade(toy)
    assert probe(ours) == ["green"]


def test_patch_turns_probe_green_and_restores(ours, toy):
    cache = load("toy_lm.cache").BatchKVCache
    before = cache.update_and_fetch
    manager = Manager(open_gate(ours))
    assert probe(ours, manager) == ["green"]
    assert cache.update_and_fetch is not before
    manager.restore()
    assert cache.update_and_fetch is before
    assert probe(ours) == ["red"]


def test_mutant_turns_probe_red(ours, toy, monkeypatch):
    module = sys.modules[ours.module]
    names: dict[str, object] = {}
    exec(BLOCKS["python", "tests/patches/test_toy_offset.py"], names)
    assert names["patch"] is module
    names["MUTANTS"]["toy-offset"](monkeypatch)
    assert probe(ours, Manager(open_gate(ours))) == ["red"]


def test_rule_is_measured(ours, toy):
    sets = []
    for version in ("1.0", "1.1"):
        if version == "1.1":
            upgrade(toy)
        cells = {}
        for target in ours.targets:
            manager = Manager(open_gate(ours))
            without, with_ = probe_target(ours, target), probe_target(ours, target, manager)
            manager.restore()
            assert without["body"]
            cells[target.path] = {
                "body": without["body"],
                "without": without["verdict"],
                "with": with_["verdict"],
                "detail": without["detail"],
            }
        sets.append({"set": f"toy-lm {version}", "patches": {ours.id: cells}})
    rules = {"toy-lm": matrix_file.find_rule(ours.id, sets)}
    lines = textwrap.indent(matrix_file.dump({ours.id: rules}), "  ").splitlines()
    assert BLOCKS["yaml", "compat_matrix.yaml"] == "\n".join(lines) + "\n"


def test_rule_gates_patch(ours, toy):
    rules = yaml.safe_load(BLOCKS["yaml", "compat_matrix.yaml"])
    matrix = CompatMatrix(document(releases={"toy-lm": ["1.0", "1.1"]}, patches=rules))
    load("toy_lm.cache")
    manager = Manager(Gate(matrix))
    assert statuses(manager.apply(ours)) == ["applied"]
    manager.restore()
    upgrade(toy)
    load("toy_lm.cache")
    assert statuses(Manager(Gate(matrix)).apply(ours)) == ["fixed-upstream"]


@pytest.fixture
def theirs(toy):
    project = tomllib.loads(BLOCKS["toml", "pyproject.toml"])["project"]
    for file in ("toy_lm_patches.py", "test_toy_lm_patches.py"):
        toy.write(file, BLOCKS["python", file])
    info = toy.install(project["name"], project["version"])
    groups = "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text(groups)
    return toy


def test_its_own_test_passes(theirs):
    tests = vars(importlib.import_module("test_toy_lm_patches"))
    (test,) = (function for name, function in tests.items() if name.startswith("test_"))
    test()


def test_contribution_is_applied_and_named(theirs):
    mlx_patches.apply()
    cache = load("toy_lm.cache").BatchKVCache([0, 2])
    keys, queries = load("toy_lm.model").positions(cache, [7, 8, 9])
    assert keys == queries == [0, -2]
    assert session().registry.origin("toy-lm-offset") == "toy-lm-patches"


def test_repaired_release_is_unchanged(theirs):
    upgrade(theirs)
    mlx_patches.apply()
    assert "offset" not in vars(load("toy_lm.cache").BatchKVCache)
    (outcome,) = [o for o in mlx_patches.status() if o.patch == "toy-lm-offset"]
    assert outcome.status == "fixed-upstream"
    assert outcome.reason == "fixed upstream (>=1.1); declared by toy-lm-patches"


@pytest.mark.parametrize("name", ["toy-lm-offset", "toy-lm-patches"])
def test_it_is_switched_off_by_id_and_by_distribution(theirs, monkeypatch, name):
    monkeypatch.setenv("MLX_PATCHES_DISABLE", name)
    mlx_patches.apply()
    assert "offset" not in vars(load("toy_lm.cache").BatchKVCache)
    assert ("toy_lm_patches" in sys.modules) == (name == "toy-lm-offset")


class TestConformance(Conformance):
    """The page's patch passes the tests that every patch must pass."""

    @pytest.fixture
    def case(self, theirs):
        return Case(load("toy_lm_patches").PATCH, str(theirs.root))
