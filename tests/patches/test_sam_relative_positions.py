import mlx.core as mx
import numpy as np
import pytest

from mlx_patches.patches.models.sam_relative_positions.patch import resample


@pytest.mark.parametrize("side", [1, 3, 20, 40, 48, 80])
def test_positions_are_those_at_centers(side):
    table = np.random.default_rng(0).normal(size=(127, 2)).astype("float32")
    count = 2 * side - 1
    centers = (np.arange(count) + 0.5) * len(table) / count - 0.5
    expected = [np.interp(centers, np.arange(len(table)), column) for column in table.T]
    found = resample(side, 1, mx.array(table))
    assert np.abs(np.array(found).T - expected).max() < 1e-4


def test_table_of_same_length_is_unchanged():
    table = mx.zeros((127, 2), mx.bfloat16)
    assert resample(64, 64, table) is table
    assert resample(40, 40, table).dtype == mx.bfloat16
