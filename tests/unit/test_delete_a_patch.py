"""Deleting a patch: its folder, its test and its catalogue line; `make write` does the rest."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("mlx_patches", "tools", "tests", "docs", "benchmarks")
# `make write`.
WRITE = (["measure_matrix.py", "--write"], ["measure_lab.py", "--write"], ["write_docs.py"])
CHECKS = [f"tests/unit/test_{name}.py" for name in ("evidence", "registry", "docs", "matrix")]


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository's files."""
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    return tmp_path


@pytest.mark.slow
def test_after_a_patch_is_deleted_everything_else_is_written_anew(copy):
    shutil.rmtree(copy / "mlx_patches/patches/models/aya_blur")
    (copy / "tests/patches/test_aya_blur.py").unlink()
    catalogue = copy / "mlx_patches/patches/catalogue.py"
    text, count = re.subn(r'^    \("aya-blur",[^\n]*\n', "", catalogue.read_text(), flags=re.M)
    assert count == 1
    catalogue.write_text(text)
    for command in WRITE:
        subprocess.run([sys.executable, f"tools/{command[0]}", *command[1:]], cwd=copy, check=True)
    generated = subprocess.run(
        ["grep", "-rlE", "aya[-_]blur", *COPIED[:2], "docs", "compat_matrix.yaml"],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert generated.stdout == ""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *CHECKS],
        cwd=copy,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
