"""The table of known files says what the installed release's files say."""

from __future__ import annotations

import ast

import pytest

from mlx_patches import _fingerprint, _known
from mlx_patches._distributions import source_file

from .conftest import every_target


@pytest.mark.parametrize(("patch", "target"), every_target())
def test_the_table_agrees_with_the_file(patch, target):
    path = source_file(target.module)
    if path is None:
        return
    content = path.read_bytes()
    entry = _known.entry_of(str(path))
    assert entry, f"{path.name} of this release is not in the table: run tools/known_files.py"
    fresh = _fingerprint.describe_file(content, target.mentions)
    for name in target.mentions:
        assert entry[name] == (None if fresh[name] is None else [fresh[name][0], fresh[name][1]])
    assert ast.parse(content)
