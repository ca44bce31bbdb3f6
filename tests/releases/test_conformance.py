"""The conformance suite over our patches, against what is installed."""

from __future__ import annotations

import sys

import pytest

from mlx_patches.core.outcome import NOT_NEEDED
from mlx_patches.patches import catalogue
from tests.conformance import Case, Conformance, import_modules

from .conftest import every_patch

pytestmark = pytest.mark.slow


def ready(patch) -> bool:
    """True where this environment has something that the patch can be applied to."""
    import_modules(patch)
    outcomes = Case(patch).manager().apply(patch, dry_run=True)
    return any(o.status == "pending" and has_module(o) for o in outcomes)


def has_module(outcome) -> bool:
    """True where the release has the module of a target."""
    return outcome.target.partition(":")[0] in sys.modules


class TestConformance(Conformance):
    @pytest.fixture(params=[p for p in every_patch() if ready(p.values[0])])
    def case(self, request):
        return Case(request.param)


def test_a_patch_without_targets_here_is_not_needed():
    """The rest of the registry: those that the suite above leaves out."""
    for patch in catalogue.builtin():
        if not ready(patch):
            outcomes = Case(patch).manager().apply(patch)
            assert {o.status for o in outcomes if has_module(o)} <= NOT_NEEDED, patch.id
