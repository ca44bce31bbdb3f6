import functools
import sys

import pytest

from mlx_patches.core.manager import Manager
from mlx_patches.core.outcome import NOT_NEEDED
from mlx_patches.matrix.gate import Gate
from mlx_patches.matrix.matrix import CompatMatrix
from mlx_patches.patches import catalogue
from tests.conformance import Case, Conformance, import_modules

from .conftest import every_patch

pytestmark = pytest.mark.slow


@functools.cache
def list_outcomes(patch) -> list:
    """The patch's outcomes at the imported targets, by the committed matrix."""
    import_modules(patch)
    outcomes = Manager(Gate(CompatMatrix.builtin())).apply(patch, dry_run=True)
    return [outcome for outcome in outcomes if has_module(outcome)]


def is_needed(patch) -> bool:
    return any(outcome.status == "pending" for outcome in list_outcomes(patch))


def has_module(outcome) -> bool:
    return outcome.target.partition(":")[0] in sys.modules


class TestConformance(Conformance):
    @pytest.fixture(params=every_patch())
    def case(self, request):
        # Not at collection: it imports the release's models.
        if not is_needed(request.param):
            pytest.skip("no target of the patch is affected here")
        return Case(request.param)


def test_other_patches_are_not_needed():
    for patch in catalogue.builtin():
        if not is_needed(patch):
            assert {outcome.status for outcome in list_outcomes(patch)} <= NOT_NEEDED, patch.id
