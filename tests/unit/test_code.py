import json

import pytest

from mlx_patches import MlxPatchesError
from mlx_patches.auditing import installed_code as auditing
from mlx_patches.auditing.modules import source_files
from mlx_patches.core import distributions
from mlx_patches.core.distributions import Installed
from mlx_patches.core.fingerprint import hash_module
from mlx_patches.evidence import code, outside, store

CACHE = "class KVCache:\n    offset = 0\n"
FILES = {
    "mlx_lm.models": "",
    "mlx_lm.generate": "from .models import cache\n",
    "mlx_lm.models.cache": CACHE,
    "mlx_lm.models.base": "",
    "mlx_lm.models.rope": "def rope(): return 1\n",
    "mlx_lm.models.toy": "from .rope import rope\nclass Model: pass\n",
    "mlx_lm.models.other": "class Model: pass\n",
}
OLD = {**FILES, "mlx_lm.models.toy": "class Model: old = True\n"}


@pytest.fixture
def release(site, monkeypatch, tmp_path):
    table = {
        "sets": {f"mlx-lm {one}": {"mlx-lm": one} for one in ("1.0", "1.1")},
        "releases": ["mlx-lm 1.0", "mlx-lm 1.1"],
        "modules": {
            name: [
                [code.digest(text.encode()), hash_module(text.encode()), where]
                for text, where in ([(OLD[name], [0]), (FILES[name], [1])])
            ]
            for name in FILES
        },
    }
    (tmp_path / "code.json").write_text(json.dumps(table))
    monkeypatch.setattr(code, "TABLE", tmp_path / "code.json")
    monkeypatch.setattr(store, "families_of", lambda name: ["toy", "other"])
    monkeypatch.setattr(distributions, "_packages", {})
    for name, text in FILES.items():
        file = name.replace(".", "/") + ("/__init__" if name == "mlx_lm.models" else "")
        site.write(f"{file}.py", text)
    for cached in (code._table, code._find_versions, outside._read_pictures, auditing_imports()):
        cached.cache_clear()
    yield site
    code._table.cache_clear()
    outside._read_pictures.cache_clear()


def auditing_imports():
    from mlx_patches.auditing import modules

    return modules._imports


def sets(version):
    here = Installed("mlx-lm", version)
    every = {family: one.set for family, one in auditing.match_families(here, source_files().get)}
    for family, found in every.items():
        assert auditing.match_family(here, family).set == found, auditing.match_family(here, family)
    return every


def note(version, family="toy"):
    here = Installed("mlx-lm", version)
    return auditing.match_family(here, family).note(here)


@pytest.mark.parametrize("version", ["1.1", "1.2", "1.0", "0.1", "1.1+local"])
def test_same_code_same_evidence(release, version):
    assert sets(version) == {"toy": "mlx-lm 1.1", "other": "mlx-lm 1.1"} or version == "1.0"
    assert sets(version)["toy"] == "mlx-lm 1.1"
    expected = "" if version == "1.1" else "the same code was measured as mlx-lm 1.1"
    assert note(version) == expected


def test_installed_set_comes_first(release):
    assert sets("1.0")["other"] == "mlx-lm 1.0"


def test_comments_and_line_ends_do_not_count(release):
    release.write("mlx_lm/models/cache.py", "# a comment\n" + CACHE.replace("\n", "\r\n"))
    assert sets("1.1") == {"toy": "mlx-lm 1.1", "other": "mlx-lm 1.1"}


def test_changed_file_affects_its_families(release):
    release.write("mlx_lm/models/rope.py", "def rope(): return 2\n")
    assert sets("1.1") == {"toy": "", "other": "mlx-lm 1.1"}
    differs = "mlx_lm.models.rope differs from mlx-lm 1.1"
    assert note("1.1") == f"this is not the 1.1 release: {differs}"
    assert note("1.2") == f"its code is new: {differs}"


def test_changed_dependency_is_named(release):
    one = auditing.Match("", "mlx-vlm 2.0", ("mlx_lm.generate",))
    table = code._table()
    table["sets"]["mlx-vlm 2.0"] = {"mlx-lm": "1.0", "mlx-vlm": "2.0"}
    expected = "it runs code that was not measured: mlx_lm.generate differs from mlx-lm 1.0"
    here = Installed("mlx-vlm", "2.0")
    assert one.note(here) == expected
    assert auditing.instead(here, [here, Installed("mlx-lm", "1.1")]) == ["mlx-lm 1.0"]
    assert auditing.instead(here, [here, Installed("mlx-lm", "1.0")]) == ["mlx-vlm 2.0"]


def test_unmeasured_model_type_is_no_changed_release(release):
    """A release has models that the lab does not run, such as encoders."""
    release.write("mlx_lm/models/bert.py", "class Model: pass\n")
    here = Installed("mlx-lm", "1.1")
    note = auditing.match_family(here, "bert").note(here)
    assert note == "the lab did not measure this model type"
    release.write("mlx_lm/models/toy.py", "changed = True\n")
    note = auditing.match_family(here, "toy").note(here)
    assert note.startswith("this is not the 1.1 release: mlx_lm.models.toy")


def test_older_code_has_older_evidence(release):
    release.write("mlx_lm/models/toy.py", OLD["mlx_lm.models.toy"])
    assert sets("1.1") == {"toy": "mlx-lm 1.0", "other": "mlx-lm 1.1"}


@pytest.mark.parametrize("shared", ["models/cache", "models/base", "generate"])
def test_changed_shared_module_affects_all(release, shared):
    release.write(f"mlx_lm/{shared}.py", "changed = True\n")
    assert sets("1.1") == {"toy": "", "other": ""}
    assert auditing.match_family(Installed("mlx-lm", "1.1"), "other").set == ""


def test_invalid_file_is_not_measured(release):
    release.write("mlx_lm/models/rope.py", "<html>")
    assert sets("1.1")["toy"] == ""


def test_images_of_the_same_code(release, monkeypatch):
    """A set of image measurements is found by its code, but not for scenarios."""
    table = code._table()
    table["images"] = {"mlx-lm 1.0": table["sets"].pop("mlx-lm 1.0")}
    files = {name: {"toy": name} for name in ("mlx-lm 1.0", "mlx-lm 1.1")}
    monkeypatch.setattr(outside, "read_images", lambda name: files.get(name, {}))
    assert sets("1.0")["toy"] == "mlx-lm 1.1"
    here = Installed("mlx-lm", "1.0")
    assert auditing.find_images(here, "toy", "mlx-lm 1.1") == "mlx-lm 1.1"
    release.write("mlx_lm/models/toy.py", OLD["mlx_lm.models.toy"])
    code._find_versions.cache_clear()
    assert auditing.match_family(here, "toy").set == ""
    assert auditing.find_images(here, "toy", "") == "mlx-lm 1.0"
    release.write("mlx_lm/models/toy.py", "changed = True\n")
    code._find_versions.cache_clear()
    assert auditing.find_images(here, "toy", "") is None
    assert auditing.find_images(here, "other", "") is None


def test_broken_table_is_one_line(release, monkeypatch, tmp_path):
    code._table.cache_clear()
    (tmp_path / "code.json").write_text("{")
    with pytest.raises(MlxPatchesError, match="reinstall mlx-patches"):
        code.sets_of("mlx-lm")


def test_every_set_has_code():
    """Update with tools/mark_code.py, run by the Python of the release's environment."""
    assert set(code.sets_of("mlx-lm")) | set(code.sets_of("mlx-vlm")) == {
        one["set"] for one in store.load()
    }
