"""``vlm-sampling-parameters``: each parameter reaches the sampler, or is refused."""

import importlib
import math
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_sampling_parameters import patch
from mlx_patches.patches.server.vlm_sampling_parameters.probe import sample

from ..releases.models import module_or_skip

pytestmark = pytest.mark.skipif(
    not source_file("mlx_vlm.server.generation"), reason="no such server here"
)
ROWS, VOCABULARY = 24, 32


@pytest.fixture
def server():
    return module_or_skip("mlx_vlm.server")


def draw_logprobs():
    logits = mx.random.normal((ROWS, VOCABULARY), key=mx.random.key(3))
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def build(server, processor=None, **sent):
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "messages": messages, "temperature": 1.5, **sent}
    return server._build_gen_args(server.ChatRequest.model_validate(body), processor)


@pytest.mark.parametrize(
    "sent", [{"seed": 7}, {"seed": 7, "top_p": 0.9}, {"temperature": 0.0, "min_p": 0.5}]
)
def test_covered_requests_keep_the_release_sampler(sent, server, ungated):
    released = server.ResponseGenerator._make_sampler(None, build(server, **sent))
    ungated("vlm-sampling-parameters")
    sampler = server.ResponseGenerator._make_sampler(None, build(server, **sent))
    assert type(sampler) is type(released)


def test_rows_of_one_seed_draw_by_position(server, ungated):
    ungated("vlm-sampling-parameters")
    logprobs, sent = draw_logprobs(), {"min_p": 0.01, "seed": 7}
    whole = sample(server, logprobs, sent)
    args = build(server, **sent, temperature=2.0)
    sampler = server.ResponseGenerator._make_sampler(SimpleNamespace(stop_tokens=set()), args)
    for row in range(ROWS):
        one = sampler.sample_target(logprobs[row : row + 1], row_ids=[0], positions=[row])
        assert one.tolist() == whole[row : row + 1]
    assert sample(server, logprobs, {**sent, "seed": 8}) != whole


def test_likeliest_token_is_excluded_by_xtc(server, ungated):
    ungated("vlm-sampling-parameters")
    logprobs = mx.log(mx.array([[0.5, 0.4, 0.1]] * ROWS))
    drawn = sample(server, logprobs, {"xtc_probability": 1.0, "xtc_threshold": 0.2, "seed": 1})
    assert set(drawn) == {1, 2}


@pytest.mark.parametrize(
    "sent",
    [
        {"min_p": 1.5},
        {"min_p": -1},
        {"xtc_threshold": 0.7},
        {"top_k": -1},
        {"top_logprobs": 21},
        {"temperature": -1},
        {"repetition_penalty": -0.5},
    ],
)
def test_numbers_out_of_range_are_refused(sent, server, ungated):
    ungated("vlm-sampling-parameters")
    (name,) = sent
    with pytest.raises(ValueError, match=f"^{name}: .* is not a number from 0 to"):
        build(server, **sent)


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        ({"logit_bias": {"a": 1}}, "logit_bias: 'a' is not a token id"),
        ({"logit_bias": {"-1": 1}}, "logit_bias: '-1' is not a token id"),
        ({"logit_bias": {"3": math.nan}}, "logit_bias: 'nan' is not a number up to 9e\\+18"),
        ({"top_logprobs": 3}, "top_logprobs: needs logprobs"),
        ({"response_format": "json"}, "response_format: not an object"),
        ({"response_format": {"type": "xml"}}, "Unsupported response_format type: 'xml'"),
    ],
)
def test_other_requests_are_refused_with_status_400(sent, fault, server, ungated):
    ungated("vlm-sampling-parameters")
    with pytest.raises(ValueError, match=fault) as caught:
        build(server, processor=SimpleNamespace(), **sent)
    assert caught.value.status_code == 400


@pytest.mark.parametrize("bias", [None, {}, {"3": 100}, {3: -1e9}, {"3": -math.inf}])
def test_bias_reaches_the_arguments(bias, server, ungated):
    ungated("vlm-sampling-parameters")
    found = build(server, logit_bias=bias).logit_bias
    assert found == (bias and {int(token): value for token, value in bias.items()})


@pytest.mark.parametrize(
    "sent",
    [
        {"repetition_penalty": 1.2},
        {"presence_penalty": 1},
        {"logit_bias": {"3": 5}},
        {"logprobs": True},
    ],
)
def test_parameters_that_drafts_ignore_are_refused(sent, server, ungated, monkeypatch):
    runtime = importlib.import_module("mlx_vlm.server.runtime").runtime
    ungated("vlm-sampling-parameters")
    assert build(server, **sent)
    monkeypatch.setattr(runtime, "response_generator", SimpleNamespace(draft_model=object()))
    neutral = {"repetition_penalty": 1.0, "frequency_penalty": 0, "logit_bias": {}}
    assert build(server, **neutral, logprobs=False)
    with pytest.raises(
        ValueError, match=f"{next(iter(sent))}: not supported .* with a draft model"
    ):
        build(server, **sent)


def test_parameter_that_the_release_lacks_is_refused(server, ungated, monkeypatch):
    ungated("vlm-sampling-parameters")
    generation = importlib.import_module("mlx_vlm.server.generation")
    monkeypatch.setattr(generation, "make_sampler", lambda temp, top_p=1.0, min_p=0.0: None)
    with pytest.raises(ValueError, match="top_k: not supported"):
        build(server, top_k=3)


def test_first_server_refuses_what_it_ignores():
    def read(request):
        return patch.refuse_unread(lambda request: "built", request)

    neutral = SimpleNamespace(seed=0, repetition_penalty=1.0, typical_p=1, logit_bias={})
    assert read(neutral) == read(SimpleNamespace(temperature=1.5, top_p=0.5)) == "built"
    assert read(SimpleNamespace(logprobs=True, top_logprobs=20)) == "built"
    for name in patch._UNREAD:
        with pytest.raises(ValueError, match=f"^{name}: not supported by this mlx-vlm; remove it"):
            read(SimpleNamespace(**{name: {"3": 2} if name == "logit_bias" else 2}))
