"""An error of the environment is neither a defect of a release nor its absence."""

import errno
import importlib
import sys
from types import SimpleNamespace

import pytest

from mlx_patches.core.patch import Patch, Target
from mlx_patches.evidence.results import NotApplicable, find_fault
from mlx_patches.lab import Family, build, server_thread
from mlx_patches.probes import child
from mlx_patches.probes.fixtures import require_module


def wrap(error, cause):
    error.__cause__ = cause
    return error


APPLIES = "from mlx_patches.probes import NotApplicable"
LACKS = ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (LACKS, "No module named 'uvicorn': install it"),
        (wrap(ValueError("not built"), LACKS), "No module named 'uvicorn': install it"),
        (ModuleNotFoundError("none", name="mlx_lm.models.absent"), ""),
        (ModuleNotFoundError("none", name="mlx_vlm"), ""),
        (OSError(errno.ENOSPC, "No space left"), "no memory or disk space is left"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "no memory or disk space is left"),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit of open files"),
        (ValueError("not allowed to raise maximum limit"), "raise the limit of open files"),
        (RuntimeError("can't start new thread"), "raise the limit of processes"),
        (MemoryError("1 TB"), "no memory or disk space is left: 1 TB"),
        (RuntimeError("[Compile::eval_cpu] Failed"), "MLX cannot compile its kernels"),
        (ValueError("shapes differ"), ""),
        (ImportError("cannot import name 'x'", name="mlx_lm.models"), ""),
        (ImportError("cannot import name 'x'", name="transformers"), "cannot import name 'x'"),
        (ImportError("undefined symbol", name="mlx.core"), "undefined symbol: install it"),
        (ImportError("needs the PIL library"), "needs the PIL library: install it"),
        (RuntimeError("ld: No space left on device"), "no memory or disk space is left"),
    ],
    ids=str,
)
def test_fault_of_environment(error, fault):
    found = find_fault(error, "mlx_lm")
    assert fault in found
    assert bool(fault) is bool(found)


def test_module_that_imports_a_missing_package(tmp_path, monkeypatch):
    (tmp_path / "a_host.py").write_text("import a_missing_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_missing_dependency"):
        require_module("a_host")
    with pytest.raises(NotApplicable, match="another_host"):
        require_module("another_host.server")


def test_package_that_cannot_be_imported(site, monkeypatch):
    """As without a working directory, or with other releases of its dependencies."""
    for name in ("mlx_vlm", "mlx_vlm.models.one"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for where, fault in (("__init__", "mlx_vlm cannot be imported here"), ("models/one", "")):
        site.write(f"mlx_vlm/{where}.py", "raise FileNotFoundError('no such file')")
        with pytest.raises(FileNotFoundError) as raised:
            importlib.import_module("mlx_vlm.models.one")
        assert find_fault(raised.value).startswith(fault)
        assert bool(find_fault(raised.value)) is bool(fault)
        site.write(f"mlx_vlm/{where}.py", "")


def test_engine_that_imports_a_missing_package(site, monkeypatch):
    site.write("mlx_vlm/generate.py", "import a_missing_dependency")
    site.write("mlx_vlm/server.py", "import a_missing_dependency")
    for name in ("mlx_vlm", "mlx_vlm.generate", "mlx_vlm.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_missing_dependency"):
        server_thread.response_generator()
    with pytest.raises(ModuleNotFoundError, match="a_missing_dependency"):
        build._batch_cache(None, Family("mlx-vlm", "qwen2_vl"), [])
    for name in ("generate", "server"):
        site.write(f"mlx_vlm/{name}.py", "")
    with pytest.raises(NotApplicable, match="does not batch prompts with images"):
        server_thread.response_generator()
    with pytest.raises(NotApplicable, match="no batch engine"):
        build._batch_cache(None, Family("mlx-vlm", "qwen2_vl"), [])


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("import a_missing_dependency", "not-run"),
        ("import mlx_lm.a_missing_module", "n/a"),
        ("raise ValueError('wrong')", "red"),
        (f"{APPLIES}\n    raise NotApplicable('not built')", "n/a"),
        (f"{APPLIES}\n    raise NotApplicable('not built') from ImportError('no PIL')", "not-run"),
    ],
)
def test_verdict_of_probe_that_raises(tmp_path, monkeypatch, line, verdict):
    (tmp_path / "a_probe.py").write_text(f"def probe(target):\n    {line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "a_probe", raising=False)
    target = Target("mlx-lm", "mlx_lm.server", "main", lambda original: original)
    patch = Patch("one", "mlx-lm: a summary", (target,), module="a_patch", probe="a_probe:probe")
    assert child.probe_target(patch, target)["verdict"] == verdict


def test_module_that_needs_metal_stops_only_its_own_probe(tmp_path, monkeypatch):
    for name, text in (
        ("a_metal_module", "raise RuntimeError('No Metal back-end')"),
        ("a_plain_module", ""),
        (
            "a_right_probe",
            "def probe(target): return SimpleNamespace(red=False, detail='', figure=0)",
        ),
    ):
        (tmp_path / f"{name}.py").write_text(f"from types import SimpleNamespace\n{text}")
    monkeypatch.syspath_prepend(tmp_path)
    targets = [
        Target("mlx-lm", name, "main", lambda original: original)
        for name in ("a_plain_module", "a_metal_module")
    ]
    patch = Patch("one", "mlx-lm: a summary", (*targets,), module="a", probe="a_right_probe:probe")
    manager = SimpleNamespace(apply=lambda patch: [], failures={})
    verdicts = [child.probe_target(patch, target, manager)["verdict"] for target in targets]
    assert verdicts == ["green", "n/a"]
