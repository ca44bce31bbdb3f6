import mlx.core as mx
import pytest

from mlx_patches.patches.masks.indexer_mask import patch


@pytest.mark.parametrize("mask", [None, "causal", mx.ones((2, 3)), mx.ones((2, 2, 3))])
def test_other_masks_are_unchanged(mask):
    assert patch.without_heads(mask) is mask
