"""``max-kv-size-ignored``: which models log a warning, and how often."""

from __future__ import annotations

import gc
import importlib

import pytest

from mlx_patches.patches.generation.max_kv_size_ignored.probe import SIZE, listened, model_of

from ..releases.conftest import installed

pytestmark = pytest.mark.skipif(not installed("mlx-lm"), reason="tests of mlx-lm")


@pytest.fixture
def module(ungated):
    ungated("max-kv-size-ignored")
    return importlib.import_module("mlx_lm.models.cache")


def test_class_is_warned_once(module):
    model = model_of(module)
    for times in (1, 0):
        caches, heard = listened(lambda: module.make_prompt_cache(model, max_kv_size=SIZE))
        assert [type(layer).__name__ for layer in caches] == ["KVCache", "RotatingKVCache"]
        assert len(heard) == times
    assert listened(lambda: module.make_prompt_cache(model_of(module)))[1] == []


def test_probe_models_have_own_classes(module):
    """Also one whose class lies where a freed one lay: the warning is once a class."""
    for _ in range(10):
        assert len(listened(lambda: module.make_prompt_cache(model_of(module), SIZE))[1]) == 1
        gc.collect()


def test_model_with_max_size_is_not_warned(module):
    class Model:
        layers = (None,)

    caches, heard = listened(lambda: module.make_prompt_cache(Model(), SIZE))
    assert caches[0].max_size == SIZE
    assert not heard


def test_cache_that_does_not_grow_is_ignored(module):
    class Model:
        def make_cache(self):
            return [module.RotatingKVCache(max_size=SIZE)]

    assert listened(lambda: module.make_prompt_cache(Model(), SIZE))[1] == []
