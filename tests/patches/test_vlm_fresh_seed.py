import importlib

import pytest

from ..releases.models import module_or_skip


@pytest.fixture
def schemas():
    return module_or_skip("mlx_vlm.server.schemas")


def a_chat(schemas, **sent):
    messages = [{"role": "user", "content": "hi"}]
    return schemas.ChatRequest.model_validate({"model": "m", "messages": messages, **sent})


def test_request_seed_is_used(schemas, ungated):
    earlier = a_chat(schemas)
    assert earlier.seed == 0
    manager = ungated("vlm-fresh-seed")
    assert earlier.seed is None
    assert a_chat(schemas).seed is None
    assert [a_chat(schemas, seed=seed).seed for seed in (0, 7)] == [0, 7]
    assert a_chat(schemas, seed=7).model_copy().seed == 7
    assert a_chat(schemas).model_dump()["seed"] == 0
    manager.restore()
    assert earlier.seed == 0


def test_sampler_without_seed_draws_one(schemas, ungated):
    ungated("vlm-fresh-seed")
    kind = importlib.import_module("mlx_vlm.server.generation")._PositionedTargetSampler
    settings = {"temperature": 0.7, "top_p": 1.0}
    seeds = {kind(seed=None, **settings).seed for _ in range(8)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)
    assert [kind(seed=seed, **settings).seed for seed in (0, 42)] == [0, 42]
