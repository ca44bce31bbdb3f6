import importlib

import pytest

from ..releases.conftest import is_installed


def test_values_of_width_zero(ungated):
    """DeepSeek V3.2's indexer keeps only keys; MLX before 0.30.6 cannot index empty arrays."""
    mx = pytest.importorskip("mlx.core")
    ungated("empty-cache-ops")
    package = "mlx_lm" if is_installed("mlx-lm") else "mlx_vlm"
    cache = importlib.import_module(f"{package}.models.cache").BatchKVCache([0, 2, 1])
    keys = mx.arange(3.0)[:, None, None, None] + mx.zeros((3, 1, 4, 2))
    cache.update_and_fetch(keys, mx.zeros((3, 1, 4, 0)))
    cache.filter(mx.array([1, 2]))
    assert cache.left_padding.tolist() == [1, 0]
    assert cache.keys[:, 0, 0, 0].tolist() == [1, 2]
    assert cache.values.shape == (*cache.keys.shape[:3], 0)
