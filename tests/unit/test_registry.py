import importlib
import re
import sys

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.activation import git_hosts
from mlx_patches.activation.session import Session
from mlx_patches.core.registry import Registry
from mlx_patches.patches import catalogue

from .conftest import load, matrix_for, patch_of, registry_of, run_command


def test_duplicate_id():
    registry = registry_of(patch_of("f", id="one"))
    with pytest.raises(ValueError, match="'one' is registered already"):
        registry.add(patch_of("g", id="one"))
    taken, *_ = catalogue.builtin().ids()
    with pytest.raises(ValueError, match=f"'{taken}' is registered already"):
        catalogue.builtin().add(patch_of("g", id=taken))


def test_lazy_module(site):
    site.write("lazy_patches.py", "raise RuntimeError('imported')\n")
    registry = Registry({"lazy": {"place": "lazy_patches"}})
    assert registry.ids() == ("lazy",)
    assert "lazy" in registry
    with pytest.raises(RuntimeError, match="imported"):
        registry.get("lazy")


LAZY = """
from mlx_patches.core.patch import Patch, Target

def double(original):
    return lambda: 2 * original()

def double_argument(original):
    return lambda x: original(2 * x)

TARGETS = (Target("fake-lm", "fake_lm.cache", "{name}", {factory}, ("{name}",), {when}),)
PATCH = Patch("lazy", "it is half", TARGETS, __name__, "probes:lazy")
"""


@pytest.fixture
def declaring(site):
    def write(name="size", declared="size", factory="double", when="when=bool"):
        site.write("lazy_patches.py", LAZY.format(name=name, factory=factory, when=when))
        targets = [f"fake-lm fake_lm.cache {declared} 000 {declared}"]
        row = {"summary": "it is half", "probe": "probes:lazy", "optional": False}
        return Registry({"lazy": {"place": "lazy_patches", **row, "targets": targets}})

    return write


def test_declared_patch_is_imported_when_completed(declaring):
    registry = declaring()
    patch = registry.find_declared("lazy")
    assert "lazy_patches" not in sys.modules
    assert patch.targets[0].path == "fake_lm.cache:size"
    with pytest.raises(MlxPatchesError, match="completes it"):
        patch.targets[0].factory(lambda: 2)
    assert "lazy_patches" not in sys.modules
    assert registry.complete("lazy", patch.targets[0]).factory(lambda: 2)() == 4
    assert "lazy_patches" in sys.modules
    real = registry.get("lazy")
    assert patch._replace(targets=()) == real._replace(targets=())
    assert [t._replace(factory=None) for t in patch.targets] == [
        t._replace(factory=None, when=None) for t in real.targets
    ]
    assert registry.complete("lazy", real.targets[0]) is real.targets[0]


def test_declared_check_decides_each_call(fake, declaring):
    registry = declaring("attend", "attend", "double_argument", "when=lambda x: x > 5")
    cache = load("fake_lm.cache")
    session = Session(registry, matrix_for(registry.find_declared("lazy")))
    assert session.apply(patches=["lazy"]).ok
    assert [cache.attend(x) for x in (1, 6)] == [2, 13]
    session.restore()


def test_stale_declaration(declaring):
    registry = declaring(name="width")
    with pytest.raises(MlxPatchesError, match=r"no target fake_lm\.cache:size.*is stale"):
        registry.complete("lazy", registry.find_declared("lazy").targets[0])


@pytest.mark.parametrize("broken", ["raise SystemExit(3)", "import no_such_module", "1 / 0"])
def test_failing_module_is_rolled_back(fake, declaring, broken):
    registry = declaring("attend", "attend")
    patch = registry.find_declared("lazy")
    fake.write("lazy_patches.py", broken)
    cache = load("fake_lm.cache")
    original = cache.attend
    session = Session(registry, matrix_for(patch))
    (outcome,) = session.apply(patches=["lazy"])
    assert outcome.status == "failed"
    assert outcome.reason.startswith("rolled back: ")
    assert cache.attend is original
    session.restore()


@pytest.mark.parametrize("content", [None, "", "[]", "3", '{"lazy": 3}', '{"lazy": {}}'])
def test_damaged_table_is_one_line(tmp_path, monkeypatch, content):
    table = tmp_path / "declarations.json"
    if content is not None:
        table.write_text(content)
    monkeypatch.setattr(catalogue, "DECLARATIONS", table)
    with pytest.raises(MlxPatchesError) as raised:
        catalogue.builtin()
    message = str(raised.value)
    assert message.startswith(f"{table}: ") and message.endswith(": reinstall mlx-patches")
    assert message.isprintable()


def test_unneeded_patch_is_not_imported():
    code = (
        "import sys, mlx_patches; assert mlx_patches.apply()\n"
        "print([name for name in sys.modules if name.startswith('mlx_patches.patches.')])"
    )
    assert run_command([sys.executable, "-c", code]).stdout == "['mlx_patches.patches.catalogue']\n"


def test_patches_are_well_formed():
    for patch in (*catalogue.builtin(), *(one.patch for one in git_hosts.contributions(str))):
        assert patch.targets
        assert patch.summary or patch.id not in catalogue.builtin()
        assert len({target.path for target in patch.targets}) == len(patch.targets)
        doc = patch.documentation
        for part in ("Why", "How", "Upstream", "Retire when"):
            assert re.search(rf"^{part}\n    \S", doc, re.MULTILINE), (patch.id, part)
        assert "TODO" not in doc + patch.summary, patch.id
        module, name = patch.probe_place
        assert hasattr(importlib.import_module(module), name), patch.id


def test_former_id_is_accepted(caplog):
    registry = Registry()
    registry.add(patch_of("f", id="new-id", formerly="old-id"))
    for find in (registry.get, registry.find_declared):
        caplog.clear()
        assert find("old-id").id == "new-id"
        assert caplog.messages == ["mlx_patches: the patch old-id was renamed to new-id"]
    caplog.clear()
    assert registry.get("new-id").id == "new-id"
    assert registry.today("") == ""  # most patches have no former id
    assert not caplog.messages
    assert "old-id" not in registry.ids()


def test_former_id_switches_off(fake, monkeypatch):
    monkeypatch.setenv("MLX_PATCHES_DISABLE", "old-id")
    registry = Registry()
    registry.add(patch_of("attend", id="new-id", formerly="old-id"))
    session = Session(registry, matrix_for(registry.get("new-id")))
    assert session.why_off("new-id")
    assert {str(one.status) for one in session.apply(["old-id"])} == {"disabled"}


def test_former_ids_are_unused():
    former = [patch.formerly for patch in catalogue.builtin() if patch.formerly]
    assert len(former) == len(set(former))
    assert not set(former) & set(catalogue.builtin().ids())
