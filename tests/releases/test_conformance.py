"""The conformance suite over our patches, against what is installed."""

from __future__ import annotations

import pytest

from mlx_patches import _registry
from mlx_patches._ledger import NOT_NEEDED
from tests.conformance import Case, Conformance, import_modules

from .conftest import every_patch


def ready(patch) -> bool:
    """True where this environment has something that the patch can be applied to."""
    import_modules(patch)
    return any(o.status == "pending" for o in Case(patch).manager().apply(patch, dry_run=True))


class TestConformance(Conformance):
    @pytest.fixture(params=[p for p in every_patch() if ready(p.values[0])])
    def case(self, request):
        return Case(request.param)


def test_a_patch_without_targets_here_is_not_needed():
    """The rest of the registry: those that the suite above leaves out."""
    for patch in _registry.builtin():
        if not ready(patch):
            outcomes = Case(patch).manager().apply(patch)
            assert {outcome.status for outcome in outcomes} <= NOT_NEEDED, patch.id
