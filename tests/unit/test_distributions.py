import sys
import zipfile
from importlib.machinery import PathFinder

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.utils import canonicalize_name

from mlx_patches.core import distributions
from mlx_patches.core.distributions import Installed
from mlx_patches.core.errors import MlxPatchesError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("name", ["fake-lm", "fake_lm", "Fake-LM", "fake.lm"])
def test_version_by_any_spelling(site, name):
    site.install("fake-lm", "1.2.3")
    assert distributions.find(name)[1:] == Installed("fake-lm", "1.2.3")[1:]
    assert str(distributions.find("fake-lm")) == "fake-lm 1.2.3"


def test_direct_url_commit(site):
    url = {"url": "https://host/repo", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}
    site.install("fake-lm", "1.2.3", direct_url=url)
    found = distributions.find("fake-lm")
    assert found == Installed("fake-lm", "1.2.3", commit=COMMIT)
    assert str(found) == "fake-lm 1.2.3 at commit 0123456789ab"


BROKEN = ["", "{", "[]", "3", "null", '{"vcs_info": 3, "dir_info": []}', '{"vcs_info": {}}']


@pytest.mark.parametrize(
    ("info", "editable"),
    [
        ({"url": "file:///x", "dir_info": {"editable": True}}, True),
        ({"url": "file:///x", "dir_info": {"editable": False}}, False),
        ({"url": "file:///x", "dir_info": {}}, False),
        ({"url": "file:///x.whl", "archive_info": {}}, False),
        *((text, False) for text in BROKEN),
    ],
)
def test_editable_or_broken_direct_url(site, info, editable):
    site.install("fake-lm", direct_url=info)
    found = distributions.find("fake-lm")
    assert found == Installed("fake-lm", "1.0")
    assert found.editable is editable


@given(st.text("aZ9-_.", min_size=1))
def test_canonical_name(name):
    assert distributions.canonical(name) == canonicalize_name(name)


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        ("", None),
        ("Metadata-Version: 2.1\nName: fake-lm\n", None),
        # The version is read from the headers.
        (
            "Metadata-Version: 2.1\nName: fake-lm\nVersion:  1.4 \n\nVersion: 9 is text\n",
            "1.4",
        ),
    ],
)
def test_valid_metadata(site, metadata, version):
    assert distributions.find("fake-lm") is None
    site.install("fake-lm", metadata=metadata)
    found = distributions.find("fake-lm")
    assert (found and found.version) == version


def test_binary_metadata_is_one_line(site):
    (site.install("fake-lm") / "METADATA").write_bytes(b"Name: fake-lm\nVersion: \xff\xfe\n")
    with pytest.raises(MlxPatchesError, match=r"metadata of fake-lm in .* is not text.* again$"):
        distributions.find("fake-lm")


def test_leftover_metadata_is_skipped(site, tmp_path_factory, monkeypatch):
    site.install("fake-lm", "1.1")
    leftover = tmp_path_factory.mktemp("first") / "fake_lm-1.0.dist-info"
    leftover.mkdir()
    monkeypatch.syspath_prepend(leftover.parent)
    assert distributions.find("fake-lm").version == "1.1"


@pytest.mark.parametrize("file", ["_version", "version"])
def test_copy_on_path_has_its_own_version(site, monkeypatch, file):
    monkeypatch.setattr(distributions, "_packages", {})
    site.write("mlx_lm/__init__.py")
    assert distributions.find("mlx-lm") is None
    site.write(f"mlx_lm/{file}.py", "# code\n__version__ = '0.32.2'\n")
    assert distributions.find("mlx-lm") == ("mlx-lm", "0.32.2", None)
    (site.root / "mlx_lm" / f"{file}.py").write_bytes(b"\xff\xfe")
    assert distributions.find("mlx-lm") is None


def test_only_model_packages_may_lack_metadata(site):
    site.write("vllm_mlx/version.py", "__version__ = '0.6.0'")
    assert distributions.find("vllm-mlx") is None


def test_source_files(site):
    path = site.write("pk/inner/leaf.py", "1 / 0\n")
    (site.root / "pk" / "__init__.py").write_text("1 / 0\n")
    before = set(sys.modules)
    assert distributions.source_file("pk.inner.leaf") == path
    assert distributions.source_file("pk.inner") == path.parent / "__init__.py"
    assert distributions.source_file("pk") == site.root / "pk" / "__init__.py"
    single = site.write("single.py")
    assert distributions.source_file("single") == single
    assert set(sys.modules) == before

    folder = site.root / "space" / "inner"
    folder.mkdir(parents=True)
    (folder / "leaf.py").write_text("")
    assert distributions.source_file("space.inner.leaf") == folder / "leaf.py"
    assert distributions.source_file("space") is None


@pytest.mark.parametrize("name", ["nothing", "nothing.at.all", "single.inner", "pk.nothing"])
def test_no_source_file(site, name):
    site.write("single.py")
    site.write("pk/__init__.py")
    assert distributions.source_file(name) is None


def test_source_file_of_editable_install(site, monkeypatch):
    """Setuptools puts a finder in ``sys.meta_path`` for a package beside ``setup.py``."""
    elsewhere = site.root / "checkout"
    site.write("checkout/away_lm/models/cache.py")

    class Finder:
        @classmethod
        def find_spec(cls, name, path=None, target=None):
            return PathFinder.find_spec(name, [str(elsewhere)]) if name == "away_lm" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert distributions.source_file("away_lm.models.cache") is None
    Finder.__module__ = "__editable___away_lm_1_0_finder"
    assert (
        distributions.source_file("away_lm.models.cache") == elsewhere / "away_lm/models/cache.py"
    )


def test_no_source_file_in_zip(site, monkeypatch):
    archive = site.root / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped/__init__.py", "")
        file.writestr("zipped/leaf.py", "")
    monkeypatch.syspath_prepend(archive)
    assert distributions.source_file("zipped.leaf") is None
    assert distributions.source_file("sys") is None
