"""Deleting a patch: its folder, its test or mutant, its line in stacked.txt; then `make write`."""

import os
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
NAMES = ("docs", "evidence", "floors", "matrix", "pages", "patch_evidence", "registry", "verdict")
CHECKS = [f"tests/unit/test_{name}.py" for name in NAMES]


@pytest.fixture
def copy(tmp_path):
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("area", "name"),
    [
        ("models", "aya_blur"),
        ("caches", "pool_overlap"),  # the lab's evidence names it
    ],
)
def test_delete_a_patch(copy, area, name):
    patch_id = name.replace("_", "-")
    shutil.rmtree(copy / "mlx_patches/patches" / area / name)
    (copy / f"tests/patches/test_{name}.py").unlink(missing_ok=True)
    for file, line in (
        ("tools/stacked.txt", rf"^{patch_id}\n"),
        ("tests/patches/mutants.py", rf'^    "{patch_id}":.*\n'),
    ):
        text = (copy / file).read_text()
        (copy / file).write_text(re.sub(line, "", text, flags=re.MULTILINE))
    here = {"cwd": copy, "env": {**os.environ, "PYTHONPATH": str(copy)}}
    for command in WRITE:
        subprocess.run([sys.executable, f"tools/{command[0]}", *command[1:]], check=True, **here)
    left = subprocess.run(
        ["grep", "-rlE", f"{name}|{patch_id}", *COPIED[:2], "docs", "compat_matrix.yaml"],
        capture_output=True,
        text=True,
        **here,
    )
    assert left.stdout == ""
    checks = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *CHECKS]
    done = subprocess.run(checks, capture_output=True, text=True, **here)
    assert done.returncode == 0, done.stdout[-3000:]
