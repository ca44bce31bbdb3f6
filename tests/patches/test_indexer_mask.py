"""``indexer-mask``: masks of other shapes, a model's batch past its limit, and a broken version."""

from __future__ import annotations

import pytest

from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches.masks.indexer_mask import patch
from mlx_patches.probes.fixtures import with_patches

from ..releases.models import build_or_skip

mx = pytest.importorskip("mlx.core")


@pytest.mark.parametrize("mask", [None, "causal", mx.ones((2, 3)), mx.ones((2, 2, 3))])
def test_other_masks_are_passed_on(mask):
    assert patch.without_heads(mask) is mask


def test_a_batch_that_grows_past_what_the_indexer_selects(ungated):
    model = build_or_skip("mlx-lm:deepseek_v32")
    with with_patches(("empty-cache-ops", "indexer-mask")):
        cell = SCENARIOS["growth"](model)
    assert cell.verdict == "green", cell.detail


def as_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "without_heads", lambda mask: mask)


MUTANTS = {"indexer-mask": as_given}
