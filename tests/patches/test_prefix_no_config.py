from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.generation.prefix_no_config import patch
from mlx_patches.patches.generation.prefix_no_config.probe import make_generator, make_sequence

from ..releases.models import prefix_engine


@pytest.fixture
def module(ungated):
    found = prefix_engine()
    ungated("vlm-prefix-no-config")
    return found


def test_stored_prompt_is_found(module):
    generator, sequence = make_generator(module), make_sequence(module)
    model, manager = generator.model, generator.apc_manager
    assert generator._apc_pick_for(sequence) is None
    keys = [mx.random.normal((1, 2, 8, 4))]
    extra_hash = generator._apc_extra_hash({})
    manager.release(manager.store_kv_blocks(sequence[1][:8], keys, keys, extra_hash=extra_hash))
    assert generator._apc_pick_for(sequence)["prefix_len"] == 8
    assert generator.model is model


def test_model_config_is_read(module):
    model = SimpleNamespace(layers=[], config=SimpleNamespace(image_token_id=3))
    generator = make_generator(module, model=model)
    assert generator._apc_pick_for(make_sequence(module)) is None
    if hasattr(generator, "_apc_media_token_ids"):
        assert generator._apc_media_token_ids() == {3}


def test_model_is_put_back_after_an_error():
    generator = SimpleNamespace(model=(model := object()))
    with pytest.raises(ZeroDivisionError):
        patch.read_empty_config(lambda generator: 1 / 0, generator)
    assert generator.model is model


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"vlm-prefix-no-config": ((SimpleNamespace(model=SimpleNamespace(config={})), [0]), {})}
