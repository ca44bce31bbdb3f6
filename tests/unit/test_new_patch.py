"""``make patch``: files that fail until they are filled in."""

import ast
import shutil
from pathlib import Path

import new_patch
import pytest

from mlx_patches.patches import catalogue

# An id of the catalogue.
TAKEN = catalogue.STACKED[0]
ROOT = Path(__file__).parents[2]
KEPT = (
    "mlx_patches/patches/__init__.py",
    "mlx_patches/patches/declarations.json",
    "mlx_patches/patches/caches/__init__.py",
    "mlx_patches/patches/masks/__init__.py",
    "tests/patches/__init__.py",
    "tests/patches/mutants.py",
)


@pytest.fixture
def root(tmp_path):
    """The files that a new patch changes or stands beside."""
    for name in KEPT:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_new_patch_files(root, capsys):
    new_patch.start("my-own-patch", "caches", root)
    said = capsys.readouterr().out
    for name in (
        "mlx_patches/patches/caches/my_own_patch/patch.py",
        "mlx_patches/patches/caches/my_own_patch/probe.py",
        "tests/patches/test_my_own_patch.py",
    ):
        text = (root / name).read_text()
        ast.parse(text)
        assert "TODO" in text
        assert name in said
    assert "make measure PATCH=my-own-patch" in said


@pytest.mark.parametrize(
    ("patch_id", "area", "said"),
    [
        ("", "caches", "'' is not a patch id"),
        ("One", "caches", "'One' is not a patch id"),
        ("my-patch", "cashes", "no folder 'cashes'.*there are caches, masks"),
        ("my-patch", "", "no folder ''"),
        (TAKEN, "caches", f"{TAKEN}: a patch of this id already exists"),
    ],
)
def test_invalid_patch_writes_nothing(root, patch_id, area, said):
    before = sorted(root.rglob("*"))
    with pytest.raises(SystemExit, match=said) as raised:
        new_patch.start(patch_id, area, root)
    assert "\n" not in str(raised.value)
    assert sorted(root.rglob("*")) == before
