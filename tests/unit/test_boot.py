"""Activation by the .pth file, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_patches import _enable

BOOT = "import mlx_patches._boot as boot; boot.start(); "


def run(code, *, path=None, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **({"PYTHONPATH": str(path)} if path else {}), **environment},
    )


@pytest.fixture
def package(tmp_path):
    """A stand-in for mlx_lm that imports nothing."""
    models = tmp_path / "mlx_lm" / "models"
    models.mkdir(parents=True)
    for folder in (models.parent, models):
        (folder / "__init__.py").write_text("")
    (models / "cache.py").write_text("")
    return tmp_path


def test_waits_without_importing_anything_heavy():
    done = run(
        BOOT + "import sys; print(sorted({m.partition('.')[0] for m in sys.modules} & "
        "{'mlx', 'mlx_lm', 'wrapt', 'yaml', 'packaging', 'json', 'logging', 'inspect', 're'}))"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_applies_at_the_first_import(package):
    done = run(
        BOOT + "import sys; assert 'mlx_patches._activation' not in sys.modules; import mlx_lm;"
        "from mlx_patches._activation import session; print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_applies_at_once_where_the_package_is_there_already(package):
    done = run(
        "import mlx_lm; " + BOOT + "from mlx_patches._activation import session;"
        "print(session().active)",
        path=package,
    )
    assert done.stdout.strip() == "True", done.stderr


def test_environment_variable_switches_it_off(package):
    done = run(
        BOOT + "import mlx_lm, sys; print('mlx_patches._activation' in sys.modules)",
        path=package,
        MLX_PATCHES="0",
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_line_runs_and_an_orphan_is_silent(tmp_path):
    assert run(_enable.LINE + "import mlx_patches._boot as b; assert b.active()").returncode == 0
    orphan = subprocess.run(
        [sys.executable, "-S", "-c", _enable.LINE], capture_output=True, text=True, cwd=tmp_path
    )
    assert (orphan.returncode, orphan.stderr) == (0, "")


def test_enable_and_disable(monkeypatch, tmp_path):
    monkeypatch.setattr(_enable, "_path", lambda: tmp_path / _enable.NAME)
    assert _enable.enable().read_text() == _enable.LINE
    assert _enable.enable() == tmp_path / _enable.NAME
    assert _enable.disable() == tmp_path / _enable.NAME
    assert _enable.disable() is None


def test_read_only_environment_is_one_clear_line(monkeypatch, tmp_path):
    from mlx_patches import MlxPatchesError

    monkeypatch.setattr(_enable, "_path", lambda: tmp_path / "missing" / _enable.NAME)
    with pytest.raises(MlxPatchesError, match="cannot be written"):
        _enable.enable()
    monkeypatch.setattr(_enable, "_path", lambda: Path(tmp_path))
    with pytest.raises(MlxPatchesError, match="cannot be removed"):
        _enable.disable()
