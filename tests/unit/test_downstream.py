"""Other projects' tests without and with the patches: which differences count."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools" / "downstream"))

import compare
import pytest
import release_sets
import run

from mlx_patches.patches import catalogue


@pytest.mark.parametrize(
    ("pair", "kind"),
    [
        (("passed", "failed"), compare.BROKEN),
        (("passed", "error"), compare.BROKEN),
        (("passed", "crashed"), compare.BROKEN),
        (("passed", "missing"), compare.BROKEN),
        (("skipped", "failed"), compare.BROKEN),
        (("xfailed", "failed"), compare.BROKEN),
        (("failed", "passed"), compare.REPAIRED),
        (("missing", "passed"), compare.REPAIRED),
        (("xfailed", "xpassed"), compare.OTHER),
        (("passed", "skipped"), compare.OTHER),
        (("failed", "crashed"), compare.OTHER),
    ],
)
def test_kind_of_difference(pair, kind):
    assert compare.kind(pair) == kind


def test_recipes_name_known_sets_and_patches():
    recipes = run.load()
    assert set(recipes) <= set(release_sets.load())
    ids = {patch.id for patch in catalogue.builtin()}
    for recipe in recipes.values():
        for known in recipe.differs.values():
            assert known.patch in ids and known.why
