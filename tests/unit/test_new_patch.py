"""tools/new_patch.py: in a copied tree it writes files that fail until they are filled in."""

import shutil
import sys
from pathlib import Path

import pytest

from .conftest import run_command

ROOT = Path(__file__).parents[2]
FILES = [
    *(f"mlx_patches/patches/caches/my_patch/{name}.py" for name in ("__init__", "patch", "probe")),
    "tests/patches/test_my_patch.py",
]
# Calls each part as the tests of the repository do, and prints those that are not filled in.
PARTS = """
import importlib, sys
sys.path.append("tools")
import declarations
from tests.patches import test_my_patch as tests
patch = declarations.registry().get("my-patch")
module, name = patch.probe_place
parts = {
    "probe": lambda: getattr(importlib.import_module(module), name)(patch.targets[0]),
    "patch": lambda: tests.patch.repair_cache(None),
    "test": lambda: tests.test_TODO(lambda patch: None),
    "mutant": lambda: tests.MUTANTS["my-patch"](None),
}
print(*["text"] * ("TODO" in patch.documentation), end=" ")
for part, call in parts.items():
    try:
        call()
    except NotImplementedError:
        print(part, end=" ")
"""


@pytest.fixture
def start(tmp_path):
    for name in ("mlx_patches", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tools/new_patch_files", tmp_path / "tools/new_patch_files")
    for file in (ROOT / "tools").glob("*.*"):
        shutil.copy(file, tmp_path / "tools")

    def run(*words):
        return run_command([sys.executable, *words], tmp_path, PYTHONPATH=str(tmp_path))

    return run


def test_new_files_fail_until_they_are_filled_in(start, tmp_path):
    done = start("tools/new_patch.py", "my-patch", "caches")
    assert done.stdout.splitlines()[: len(FILES)] == FILES, done.stderr
    assert '"my-patch"' in (tmp_path / "mlx_patches/patches/declarations.json").read_text()
    assert start("-c", PARTS).stdout.split() == ["text", "probe", "patch", "test", "mutant"]
    for file in FILES:
        text = (tmp_path / file).read_text().replace("TODO", "done")
        (tmp_path / file).write_text(text.replace("raise NotImplementedError", "str"))
    done = start("-c", PARTS.replace("test_TODO", "test_done"))
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def test_wrong_ids_and_taken_names_are_one_line(start, tmp_path):
    for words, message in (
        (("Mine", "caches"), "'Mine' is not a patch id: use two or more lower-case words"),
        (("my-patch", "nowhere"), "no folder 'nowhere' in mlx_patches/patches; there are caches"),
        (("pool-overlap", "caches"), "pool-overlap: mlx_patches/patches/caches/pool_overlap/"),
    ):
        done = start("tools/new_patch.py", *words)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert done.stderr.startswith(message)
    assert not any((tmp_path / file).exists() for file in FILES)
