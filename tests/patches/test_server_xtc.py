import importlib
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.patches.server.server_xtc.patch import (
    add_all_ends,
    add_threshold,
    flatten_tokens,
    make_with_threshold,
)

from ..releases.conftest import is_installed

pytestmark = pytest.mark.skipif(not is_installed("mlx-lm"), reason="its server is mlx-lm's")


def record(
    temp=0.0,
    top_p=0.0,
    min_p=0.0,
    min_tokens_to_keep=1,
    top_k=0,
    xtc_probability=0.0,
    xtc_threshold=0.0,
    xtc_special_tokens=(),
):
    """Has the parameters of the release's ``make_sampler``, and returns its arguments."""
    return dict(locals())


def test_tokens_are_one_list():
    assert flatten_tokens([7, [2, 3], (3, 4), None]) == [7, 2, 3, 4]
    assert flatten_tokens([]) == []


@pytest.mark.parametrize(
    ("args", "kwargs", "threshold"),
    [
        ((1.0,), {"xtc_probability": 0.5}, 0.1),
        ((1.0, 0.9, 0.0, 1, 0, 0.5), {}, 0.1),
        ((1.0, 0.9, 0.0, 1, 0, 0.5, 0.3), {}, 0.3),
        ((1.0,), {"xtc_threshold": 0.0}, 0.0),
        ((), {}, 0.1),
    ],
    ids=str,
)
def test_given_threshold_is_kept(args, kwargs, threshold):
    sampler = make_with_threshold(record, *args, **kwargs)
    assert sampler == {**record(*args, **kwargs), "xtc_threshold": threshold}


def test_release_has_parameters():
    import inspect

    module = importlib.import_module("mlx_lm.sample_utils")
    original = inspect.unwrap(module.make_sampler)
    assert list(inspect.signature(original).parameters) == list(
        inspect.signature(record).parameters
    )


def test_only_xtc_requests_are_completed():
    for body in (
        {},
        [],
        None,
        {"xtc_probability": 0.0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.0},
        {"xtc_probability": 0.5, "xtc_threshold": None},
    ):
        assert add_threshold(body) is body
    body = {"prompt": "hi", "xtc_probability": 0.5}
    assert add_threshold(body) == {**body, "xtc_threshold": 0.1}
    assert "xtc_threshold" not in body


def test_tokenizer_wrapper():
    tokenizer = SimpleNamespace(eos_token_id=1, eos_token_ids={1, 2}, encode=str.upper)
    ends = add_all_ends(tokenizer)
    assert (sorted(ends.eos_token_id), ends.encode("a")) == ([1, 2], "A")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = ends.no_such_thing
    assert add_all_ends(SimpleNamespace(eos_token_id=7)).eos_token_id == [7]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_server_batch_is_sampled(dtype, ungated, beside):
    server = importlib.import_module("mlx_lm.server")
    if not hasattr(server, "_make_sampler"):
        pytest.skip("this release's server makes its samplers in its loop")
    ungated("server-xtc")
    beside("xtc-rows")
    sampling = SimpleNamespace(
        temperature=1.0, top_p=0.0, top_k=0, min_p=0.0, xtc_probability=1.0, xtc_threshold=0.1
    )
    tokenizer = SimpleNamespace(eos_token_id=5, eos_token_ids={5, 0}, encode=lambda text: [4])
    sampler = server._make_sampler(SimpleNamespace(sampling=sampling), tokenizer)
    # XTC removes the top choices 1 and 2. It keeps 3, the least likely one, and 0, a stop token.
    probabilities = mx.array([[0.2, 0.3, 0.25, 0.15, 0.05, 0.05]] * 40)
    drawn = sampler(mx.log(probabilities).astype(getattr(mx, dtype))).tolist()
    assert {0, 3} <= set(drawn) <= {0, 3, 4, 5}


def test_handlers_have_own_bodies(ungated):
    server = importlib.import_module("mlx_lm.server")
    manager = ungated("server-xtc")
    one, other = (server.APIHandler.__new__(server.APIHandler) for _ in range(2))
    one.body, other.body = {"xtc_probability": 1.0}, "text"
    assert (one.body, other.body) == ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, "text")
    manager.restore()
    assert one.body["xtc_threshold"] == 0.1
    one.body = {"xtc_probability": 1.0}
    assert one.body == {"xtc_probability": 1.0}
