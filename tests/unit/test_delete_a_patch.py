"""Deleting a patch: its files, its line in the catalogue and its mutant; the rest is generated."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("mlx_patches", "tools", "tests", "docs", "benchmarks")
# `make write-matrix`.
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


def cut(file: Path, pattern: str) -> None:
    text, count = re.subn(pattern, "", file.read_text(), flags=re.M | re.S)
    assert count, pattern
    file.write_text(text)


@pytest.mark.slow
def test_after_a_patch_is_deleted_everything_else_is_written_anew(copy):
    (copy / "mlx_patches/patches/models/aya_blur/patch.py").unlink()
    (copy / "mlx_patches/patches/models/aya_blur/probe.py").unlink()
    cut(copy / "mlx_patches/patches/catalogue.py", r'^    \("aya-blur",[^\n]*\n')
    mutants = copy / "tests/releases/mutants.py"
    (name,) = re.findall(r'"aya-blur": (\w+),', mutants.read_text())
    cut(mutants, r'^    "aya-blur": [^\n]*\n')
    cut(mutants, r"^    aya_blur,\n")
    cut(mutants, rf"^def {name}\(.*?\n\n\n")
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
