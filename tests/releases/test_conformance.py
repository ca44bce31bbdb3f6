import functools
import sys

import pytest

from mlx_patches.core.outcome import NOT_NEEDED
from mlx_patches.patches import catalogue
from tests.conformance import Case, Conformance, import_modules

from .conftest import every_patch

pytestmark = pytest.mark.slow


@functools.cache
def ready(patch) -> bool:
    """True if the patch can be applied to some target in this environment."""
    import_modules(patch)
    outcomes = Case(patch).manager().apply(patch, dry_run=True)
    return any(o.status == "pending" and has_module(o) for o in outcomes)


def has_module(outcome) -> bool:
    return outcome.target.partition(":")[0] in sys.modules


class TestConformance(Conformance):
    @pytest.fixture(params=every_patch())
    def case(self, request):
        # Not at collection: it imports the release's models.
        if not ready(request.param):
            pytest.skip("no target of the patch is affected here")
        return Case(request.param)


def test_patch_without_targets_is_not_needed():
    """The other patches of the registry."""
    for patch in catalogue.builtin():
        if not ready(patch):
            outcomes = Case(patch).manager().apply(patch)
            assert {o.status for o in outcomes if has_module(o)} <= NOT_NEEDED, patch.id
