import ast

import pytest

from mlx_patches.core import fingerprint, known_files
from mlx_patches.core.distributions import source_file

from .conftest import every_target


def names_by_module() -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for parameter in every_target():
        _, target = parameter.values
        names.setdefault(target.module, set()).update(target.mentions)
    return names


@pytest.mark.parametrize(("module", "names"), names_by_module().items())
def test_known_files_table_is_current(module, names):
    path = source_file(module)
    if path is None:
        return
    content = path.read_bytes()
    entry = known_files.entry_of(str(path))
    assert entry, f"{path.name} of this release is not in the table: run tools/known_files.py"
    fresh = fingerprint.describe_file(content, names)
    for name in names:
        assert entry[name] == (None if fresh[name] is None else [fresh[name][0], fresh[name][1]])
    assert ast.parse(content)
