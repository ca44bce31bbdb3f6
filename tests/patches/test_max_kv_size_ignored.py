import gc
import importlib

import pytest

from mlx_patches.patches.generation.max_kv_size_ignored.probe import (
    SIZE,
    make_model,
    record_messages,
)

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-lm"), reason="tests of mlx-lm")


@pytest.fixture
def module(ungated):
    ungated("max-kv-size-ignored")
    return importlib.import_module("mlx_lm.models.cache")


def test_each_class_is_warned_once(module):
    model = make_model(module)
    for times in (1, 0):
        caches, messages = record_messages(
            lambda: module.make_prompt_cache(model, max_kv_size=SIZE)
        )
        assert [type(layer).__name__ for layer in caches] == ["KVCache", "RotatingKVCache"]
        assert len(messages) == times
    assert record_messages(lambda: module.make_prompt_cache(make_model(module)))[1] == []

    # The warning is logged once per class, even if a freed class had the same ``id``.
    for _ in range(10):
        assert (
            len(record_messages(lambda: module.make_prompt_cache(make_model(module), SIZE))[1]) == 1
        )
        gc.collect()


def test_models_without_warning(module):
    plain = type("Model", (), {"layers": (None,)})()
    caches, messages = record_messages(lambda: module.make_prompt_cache(plain, SIZE))
    assert caches[0].max_size == SIZE
    assert not messages
    rotating = type("Model", (), {"make_cache": lambda _: [module.RotatingKVCache(max_size=SIZE)]})
    assert record_messages(lambda: module.make_prompt_cache(rotating(), SIZE))[1] == []
