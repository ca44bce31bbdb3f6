import importlib

import mlx.core as mx
import pytest

from mlx_patches.core.packages import package_of
from mlx_patches.patches.models.mimo_value_scale.probe import SCALE, WIDTH, make

from ..releases.models import module_or_skip


@pytest.fixture
def package(distribution):
    found = package_of(distribution)
    module_or_skip(f"{found}.models.mimo_v2_flash")
    return found


@pytest.mark.parametrize("more", [{}, {"attention_value_scale": None}])
def test_config_without_scale_is_unchanged(package, distribution, more, ungated):
    x = mx.random.normal((2, 6, WIDTH), key=mx.random.key(4))
    released = make(distribution)(x)
    ungated("mimo-value-scale")
    assert mx.array_equal(make(distribution, **more)(x), released)


def test_cache_holds_scaled_values(package, distribution, ungated):
    ungated("mimo-value-scale")
    KVCache = importlib.import_module(f"{package}.models.cache").KVCache
    x = mx.random.normal((1, 6, WIDTH), key=mx.random.key(4))
    values = []
    for more in ({}, {"attention_value_scale": SCALE}):
        cache = KVCache()
        layer = make(distribution, **more)
        mx.eval(layer(x, cache=cache))
        values.append(cache.state[1])
    assert mx.array_equal(values[0] * SCALE, values[1])
    parameters = layer.parameters()
    assert set(parameters) == set(make(distribution).parameters())
