"""The audit reports a model whose single requests are wrong, even if its batches agree."""

from functools import cache

import pytest

import mlx_patches
from mlx_patches.core.distributions import source_file
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.model_types import implementations
from mlx_patches.core.patch import Patch
from mlx_patches.patches import catalogue
from mlx_patches.probes import NotApplicable

from .conftest import is_tested, run_probe

PAIRS = [
    pytest.param(patch, family, id=f"{patch.id}-{family}")
    for patch in catalogue.builtin()
    for family in patch.wrong_solo.split()
    if any(is_tested(one.distribution) and source_file(one.module) for one in patch.targets)
]


@cache
def probe_targets(patch: Patch) -> dict[str, bool]:
    """Whether a probe is red, by distribution: its own targets there that are in the release."""
    found: dict[str, bool] = {}
    for target in patch.targets:
        if is_tested(target.distribution) and source_file(target.module):
            seen = run_probe(patch, target)
            if not isinstance(seen, NotApplicable):
                found[target.distribution] = found.get(target.distribution, False) or seen.red
    return found


@pytest.mark.skipif(not PAIRS, reason="none of these models is in the tested release")
@pytest.mark.parametrize(("patch", "family"), PAIRS)
def test_audit_agrees_with_probe_on_solo_defects(patch, family):
    try:
        report = mlx_patches.audit(family)
    except MlxPatchesError:  # mlx-vlm may have the code only in another model's module
        pytest.skip(f"no model type {family} here")
    red = {
        name: seen for name, seen in probe_targets(patch).items() if name in implementations(family)
    }
    own = [one for one in report.verdicts if one.distribution in red]
    if not own:
        pytest.skip(f"no probe of {patch.id} applies to {family} here")
    for one in own:
        assert (patch.id in one.measured.solo) is red[one.distribution]
        assert one.wrong_solo(report.here()) is bool(one.measured.solo)
        assert not red[one.distribution] or one.exit_code(report.here()) == 1


@pytest.mark.parametrize("family", ["aya_vision", "glm_moe_dsa", "lfm2", "llama"])
def test_related_model_is_right(family):
    try:
        report = mlx_patches.audit(family)
    except MlxPatchesError:
        pytest.skip(f"no model type {family} here")
    assert not any(one.measured.solo for one in report.verdicts)


def test_only_model_patches_are_named():
    named = [patch for patch in catalogue.builtin() if patch.changes_solo or patch.wrong_solo]
    assert named
    for patch in named:
        # Carriers of the model's state, such as a prefix cache, are supporting targets.
        own = [target for target in patch.targets if not target.supports]
        assert own
        hosts = [target for target in own if target.distribution == "vllm-mlx"]  # its own models
        assert own != hosts
        assert all(".models." in one.module for one in own if one not in hosts), patch.id
