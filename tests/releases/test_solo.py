"""A single request gets the same bits with the patches as without."""

import os
from zlib import crc32

import mlx.core as mx
import pytest

import mlx_patches
from mlx_patches.lab import Family, LabModel
from mlx_patches.lab.build import build
from mlx_patches.lab.child import every_patch
from mlx_patches.lab.families import families
from mlx_patches.lab.rows import generate_solo
from mlx_patches.lab.runner import environment
from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches import catalogue

from .conftest import is_tested
from .models import build_or_skip

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7, 93, 23]
STEPS = 8
SHARE = 4


def sample() -> list[Family]:
    """A share of the installed families, different in each set; all if MLX_PATCHES_TEST_ALL=1."""

    def is_chosen(family: Family) -> bool:
        return crc32(f"{environment()} {family}".encode()) % SHARE == 0

    found = [family for one in ("mlx-lm", "mlx-vlm") if is_tested(one) for family in families(one)]
    return found if os.environ.get("MLX_PATCHES_TEST_ALL") else [*filter(is_chosen, found)]


@pytest.mark.parametrize("family", sample(), ids=str)
def test_solo_changes_only_where_wrong(family):
    """Solo output may change only if it depended on the chunks of the prompt.

    Patches that repair other defects of single requests are skipped.
    """
    model = build_or_skip(family)
    prompt = [token % model.vocabulary for token in PROMPT]
    before = generate_solo(model, prompt, STEPS)
    assert len(before) >= STEPS
    others = {patch.id for patch in catalogue.builtin() if patch.changes_solo or patch.wrong_solo}
    mlx_patches.apply(patches=set(every_patch()) - others)
    try:
        again = build(family)
        after = generate_solo(again, prompt, STEPS)
        if all(mx.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            return
        assert in_chunks(again) == "green"
    finally:
        mlx_patches.restore()
    assert in_chunks(model) == "red"


def in_chunks(model: LabModel) -> str:
    return SCENARIOS["chunked-solo"](model).verdict
