"""``indexer-rope``, ``mimo-value-scale``, ``nemotron-time-steps``, ``rope-input``: sound cases."""

from __future__ import annotations

import importlib

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches import catalogue
from mlx_patches.patches.models.mimo_value_scale import probe as mimo_values
from mlx_patches.patches.models.nemotron_time_steps import probe as nemotron_steps
from mlx_patches.patches.positions.indexer_rope import probe as indexer_rope
from mlx_patches.patches.positions.indexer_rope.patch import rotates_halves
from mlx_patches.patches.positions.rope_input import probe as rope_input
from mlx_patches.patches.positions.rope_input.patch import rotated

from .conftest import is_tested

mx = pytest.importorskip("mlx.core")
INDEXERS = [
    module
    for distribution, module in (
        ("mlx-lm", "mlx_lm.models.deepseek_v32"),
        ("mlx-vlm", "mlx_vlm.models.deepseek_v32.language"),
    )
    if is_tested(distribution) and source_file(module)
]
MIMO = [
    distribution
    for distribution, module in (
        ("mlx-lm", "mlx_lm.models.mimo_v2_flash"),
        ("mlx-vlm", "mlx_vlm.models.mimo_v2_flash.config"),
    )
    if is_tested(distribution) and source_file(module)
]
needs_mlx_lm = pytest.mark.skipif(not is_tested("mlx-lm"), reason="mlx-lm is not tested here")


@pytest.mark.parametrize("module", INDEXERS)
def test_an_indexer_of_glm_rotates_as_released(module, ungated):
    module = importlib.import_module(module)
    released = indexer_rope.make(module, "glm_moe_dsa").rope.traditional
    ungated(catalogue.builtin().get("indexer-rope"))
    assert indexer_rope.make(module, "glm_moe_dsa").rope.traditional == released
    assert not indexer_rope.make(module, "deepseek_v32").rope.traditional


def test_a_config_may_say_that_pairs_are_rotated():
    class Args:
        model_type = "deepseek_v32"
        indexer_rope_interleave = True

    assert not rotates_halves(Args())


@pytest.mark.parametrize("distribution", MIMO)
@pytest.mark.parametrize("more", [{}, {"attention_value_scale": None}])
def test_a_config_without_a_scale_answers_as_released(distribution, more, ungated):
    x = mx.random.normal((2, 6, mimo_values.WIDTH), key=mx.random.key(4))
    released = mimo_values.make(distribution)(x)
    ungated(catalogue.builtin().get("mimo-value-scale"))
    assert mx.array_equal(mimo_values.make(distribution, **more)(x), released)


@pytest.mark.parametrize("distribution", MIMO)
def test_scaled_values_are_what_a_cache_holds(distribution, ungated):
    ungated(catalogue.builtin().get("mimo-value-scale"))
    cache_module = "mlx_lm.models.cache" if distribution == "mlx-lm" else "mlx_vlm.models.cache"
    KVCache = importlib.import_module(cache_module).KVCache
    x = mx.random.normal((1, 6, mimo_values.WIDTH), key=mx.random.key(4))
    values = []
    for more in ({}, {"attention_value_scale": mimo_values.SCALE}):
        cache = KVCache()
        layer = mimo_values.make(distribution, **more)
        mx.eval(layer(x, cache=cache))
        values.append(cache.state[1])
    assert mx.array_equal(values[0] * mimo_values.SCALE, values[1])
    parameters = layer.parameters()
    assert set(parameters) == set(mimo_values.make(distribution).parameters())


@needs_mlx_lm
def test_limits_that_a_config_names_stay(ungated):
    module = importlib.import_module("mlx_lm.models.nemotron_h")
    patch = catalogue.builtin().get("nemotron-time-steps")
    if not hasattr(module.ModelArgs, "__post_init__"):
        pytest.skip("this release takes its limits from the config alone")
    x = mx.random.normal((1, 8, 32), key=mx.random.key(1))
    released = nemotron_steps.answered(module, x, time_step_limit=(0.01, 0.2))
    ungated(patch)
    assert mx.array_equal(nemotron_steps.answered(module, x, time_step_limit=(0.01, 0.2)), released)


@needs_mlx_lm
@pytest.mark.parametrize("name", ["SuScaledRoPE", "YarnRoPE"])
@pytest.mark.parametrize("offset", [0, 7])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_what_is_rotated_is_what_was(name, offset, dtype):
    """The same bits, from the same number of graph nodes."""
    rope = rope_input.make(importlib.import_module("mlx_lm.models.rope_utils"), name)
    plain = type(rope).__call__
    x = mx.random.normal((1, 2, 4, 8), key=mx.random.key(5)).astype(dtype)
    wanted = plain(rope, x.astype(x.dtype), offset=offset)
    assert mx.array_equal(rotated(plain, rope, x, offset=offset), wanted)
    assert mx.array_equal(rotated(plain, rope, x, offset), wanted)
