import gc
import importlib

import pytest

from mlx_patches.patches.generation.max_kv_size_ignored.probe import (
    SIZE,
    make_model,
    record_messages,
)

from ..releases.conftest import installed

pytestmark = pytest.mark.skipif(not installed("mlx-lm"), reason="tests of mlx-lm")


@pytest.fixture
def module(ungated):
    ungated("max-kv-size-ignored")
    return importlib.import_module("mlx_lm.models.cache")


def test_class_is_warned_once(module):
    model = make_model(module)
    for times in (1, 0):
        caches, messages = record_messages(
            lambda: module.make_prompt_cache(model, max_kv_size=SIZE)
        )
        assert [type(layer).__name__ for layer in caches] == ["KVCache", "RotatingKVCache"]
        assert len(messages) == times
    assert record_messages(lambda: module.make_prompt_cache(make_model(module)))[1] == []


def test_probe_models_have_own_classes(module):
    """The warning is logged once per class, even if a freed class had the same ``id``."""
    for _ in range(10):
        assert (
            len(record_messages(lambda: module.make_prompt_cache(make_model(module), SIZE))[1]) == 1
        )
        gc.collect()


def test_model_with_max_size_is_not_warned(module):
    class Model:
        layers = (None,)

    caches, messages = record_messages(lambda: module.make_prompt_cache(Model(), SIZE))
    assert caches[0].max_size == SIZE
    assert not messages


def test_rotating_cache_is_ignored(module):
    class Model:
        def make_cache(self):
            return [module.RotatingKVCache(max_size=SIZE)]

    assert record_messages(lambda: module.make_prompt_cache(Model(), SIZE))[1] == []
