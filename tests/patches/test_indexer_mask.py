"""``indexer-mask``: masks of other shapes, a model's batch past its limit, and a broken version."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlx_patches.lab.scenarios import SCENARIOS
from mlx_patches.patches.masks.indexer_mask import patch

from ..releases.models import build_or_skip


@pytest.mark.parametrize("mask", [None, "causal", mx.ones((2, 3)), mx.ones((2, 2, 3))])
def test_other_masks_are_passed_on(mask):
    assert patch.without_heads(mask) is mask


def test_a_batch_that_grows_past_what_the_indexer_selects(beside):
    model = build_or_skip("mlx-lm:deepseek_v32")
    beside("empty-cache-ops", "indexer-mask")
    cell = SCENARIOS["growth"](model)
    assert cell.verdict == "green", cell.detail
