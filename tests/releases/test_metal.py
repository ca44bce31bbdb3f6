from functools import cache

import pytest

from mlx_patches.auditing.modules import metal_branches
from mlx_patches.core import distributions
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence import store
from mlx_patches.lab.families import families


@pytest.mark.slow  # it reads every file of a release
@pytest.mark.parametrize(("package", "distribution"), MODEL_PACKAGES.items())
def test_metal_marks_are_current(package, distribution):
    here = distributions.find(distribution)
    marks = store.metal_branches(f"{distribution} {here.version}") if here else None
    if marks is None:
        return  # this release is not in the list: the audit reads its files
    find = cache(distributions.source_file)
    for one in families(distribution):
        assert list(metal_branches(package, one.name, find)) == marks.get(one.name, []), one
