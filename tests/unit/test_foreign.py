import functools
import sys
from textwrap import dedent

import pytest

from mlx_patches.auditing import audit, conflicts

from .conftest import load

SOURCE = """
import dataclasses
import typing


class Pair(typing.NamedTuple):
    one: int
    other: int


class Attention:
    def __call__(self, x, mask=None, *, shared_kv=None):
        return x

    def scale(self):
        return 1


@dataclasses.dataclass
class Args:
    size: int = 1
"""


@pytest.fixture
def attention(site, monkeypatch):
    monkeypatch.setattr(conflicts, "MODELS", ("fake_vlm",))
    site.write("fake_vlm/attention.py", SOURCE)
    return load("fake_vlm.attention").Attention


def test_unchanged_release(attention):
    assert conflicts.find_replaced() == []


def test_copy_without_parameter_is_finding(attention):
    attention.__call__ = lambda self, x, mask=None: x
    (found,) = conflicts.find_replaced()
    assert found.target == "fake_vlm.attention:Attention.__call__"
    assert found.by.startswith("tests.unit.test_foreign:")
    assert found.lacks == ("shared_kv",)
    assert "does not accept shared_kv" in found.finding
    report = audit.audit()
    assert found.finding in report.findings
    assert report.as_dict()["foreign"] == [found.as_dict()]
    assert report.exit_code() == 1


def test_replacement_names_distribution(attention, site):
    site.write("fake_host/patches.py", "def attend(self, x):\n    return x\n")
    info = site.install("Fake-Host-Server", "2.0")
    (info / "RECORD").write_text("fake_host/__init__.py,,\nfake_host/patches.py,,\n")
    attention.__call__ = load("fake_host.patches").attend
    (found,) = conflicts.find_replaced()
    assert (found.by, found.distribution) == ("fake_host.patches:attend", "Fake-Host-Server")
    assert "was replaced by fake_host.patches:attend of Fake-Host-Server, which" in found.finding
    assert found.as_dict()["distribution"] == "Fake-Host-Server"


def test_leftover_package_is_ignored(attention, site):
    info = site.install("left-over", metadata="")
    (info / "top_level.txt").write_text("left_over\n")
    attention.__call__ = lambda self, x, mask=None, shared_kv=None: x
    (found,) = conflicts.find_replaced()
    assert found.distribution == ""


@pytest.mark.parametrize(
    "copy", [lambda self, x, mask=None, shared_kv=None: x, lambda self, *args, **kwargs: None]
)
def test_fitting_copy_is_no_finding(attention, copy):
    attention.__call__ = copy
    (found,) = conflicts.find_replaced()
    assert (found.lacks, found.finding) == ((), "")


def test_wrappers_are_no_replacement(attention):
    @functools.wraps(attention.scale)
    def wrapper(self):
        return 2 * wrapper.__wrapped__(self)

    attention.scale = wrapper
    assert attention().scale() == 2
    assert conflicts.find_replaced() == []
    scope = {"__name__": "mlx_patches.patches.some"}
    exec(dedent("def scale(self): return 3"), scope)
    attention.scale = scope["scale"]
    assert conflicts.find_replaced() == []


def test_module_without_source(attention):
    sys.modules["fake_vlm.attention"].__file__ = "/no/such/file.py"
    attention.__call__ = lambda self, x: x
    (found,) = conflicts.find_replaced()
    assert found.lacks == ()


@pytest.mark.parametrize(
    ("marker", "host"),
    [
        ("_batch_patched", "vllm-mlx"),
        ("_omlx_patched", "omlx"),
        ("_rapid_gdn_wrapper", "rapid-mlx"),
        ("_RAPID_MLX_DISK_STREAM_INSTALLED", "rapid-mlx"),
    ],
)
def test_marked_class(attention, marker, host):
    assert conflicts.find_marked() == []
    setattr(attention, marker, True)
    (found,) = conflicts.find_marked()
    assert (found.target, found.by) == ("fake_vlm.attention:Attention", host)
    assert (found.marker, found.lacks, found.finding) == (marker, (), "")
    report = audit.audit()
    assert report.as_dict()["foreign"] == [found.as_dict()]
    assert not report.findings


@pytest.mark.parametrize("kind", [lambda f: f, staticmethod, classmethod, property])
def test_marked_method(attention, kind):
    def scale(*args):
        return 2

    scale._omlx_patched = True
    attention.scale = kind(scale)
    (found,) = conflicts.find_marked()
    assert (found.target, found.by) == ("fake_vlm.attention:Attention.scale", "omlx")


def test_marked_function_counts_once(attention, site):
    site.write("fake_vlm/function.py", "def attend(x):\n    return x\n")
    site.write("fake_vlm/importer.py", "from .function import attend\n")
    load("fake_vlm.importer")
    load("fake_vlm.function").attend._rapid_wrapper = True
    (found,) = conflicts.find_marked()
    assert found.target == "fake_vlm.function:attend"


def test_other_attributes(attention):
    attention._batch_size = attention.omlx_name = attention._rapidity = 3
    assert conflicts.find_marked() == []
    attention._omlx_installed = False
    attention._rapid_original_call = None
    assert conflicts.find_marked() == []
