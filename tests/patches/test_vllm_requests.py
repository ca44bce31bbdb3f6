"""vllm-mlx's requests: dropped fields, failing processors, unreadable calls, finish reasons."""

import asyncio
import contextvars
import importlib
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches._shared.request_fields import FIELDS
from mlx_patches.patches.vllm_mlx.vllm_messages_stop import patch as messages
from mlx_patches.patches.vllm_mlx.vllm_requests import failures, fields
from mlx_patches.patches.vllm_mlx.vllm_stream_end import patch as stream_end
from mlx_patches.patches.vllm_mlx.vllm_unread_calls import patch as calls
from mlx_patches.probes.vllm_engine import ask, make_engine, stream

pytestmark = pytest.mark.skipif(not source_file("vllm_mlx.engine"), reason="no vllm-mlx here")
HOT = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


@pytest.fixture(params=["batched:BatchedEngine", "simple:SimpleEngine"])
def engine(request, monkeypatch):
    module, _, name = request.param.partition(":")
    kind = getattr(importlib.import_module(f"vllm_mlx.engine.{module}"), name)
    monkeypatch.setattr(kind, "tokenizer", SimpleNamespace(eos_token_ids={0}), raising=False)
    return make_engine(kind)


def send(engine, body, how=stream, **sent):
    """The arguments that the engine's core gets."""
    context = contextvars.copy_context()
    context.run(FIELDS.set, body)
    context.run(lambda: asyncio.run(how(engine, **sent)))
    return engine.sent[-1]


def sample(processors, seed=None):
    """The tokens of an answer by its processors."""
    tokens = []
    for number in range(12):
        logits = mx.arange(8)[None] * 0.1
        for process in processors:
            logits = process(mx.array([1, *tokens]), logits)
        mx.random.seed(number if seed is None else seed)
        tokens.append(int(mx.random.categorical(logits)))
    return tokens


@pytest.mark.parametrize("how", [stream, ask])
def test_seed_decides_the_tokens(how, engine, ungated):
    ungated("vllm-request-fields")
    found = [
        sample(send(engine, {"seed": seed}, how, **HOT)["logits_processors"], other)
        for seed, other in ((5, 1), (5, 2), (6, 1))
    ]
    assert found[0] == found[1] != found[2]
    assert len({*found[0]}) > 2


def test_xtc_excludes_the_likeliest(engine, ungated):
    ungated("vllm-request-fields")
    body = {"xtc_probability": 1.0, "xtc_threshold": 0.13}
    (process,) = send(engine, body, **HOT)["logits_processors"]
    assert {*sample([process])} <= {*range(7)} - {6}


def test_penalties_keep_the_requests_other_processors(engine, ungated):
    ungated("vllm-request-fields")
    own = lambda tokens, logits: logits  # noqa: E731
    sent = send(
        engine,
        {"frequency_penalty": 1.0, "repetition_context_size": 3},
        repetition_penalty=1.5,
        presence_penalty=1.0,
        logits_processors=[own],
    )
    assert len(sent["logits_processors"]) == 4
    assert sent["logits_processors"][-1] is own
    assert (sent["repetition_penalty"], sent["presence_penalty"]) == (1.0, 0.0)


@pytest.mark.parametrize("body", [{}, {"seed": None}, {"seed": "1"}, {"logit_bias": {"3": 1}}])
def test_other_requests_are_unchanged(body, engine, ungated):
    ungated("vllm-request-fields")
    assert not send(engine, body, **HOT).get("logits_processors")
    assert send(engine, {"top_k": 3})["top_k"] == 3


def test_bad_bias_is_refused(engine, ungated):
    ungated("vllm-request-fields")
    with pytest.raises(ValueError, match="logit_bias: expected a number for each token id"):
        send(engine, {"prompt": "hi", "logit_bias": {"a": 1}})


def test_guarded_processor_is_the_processor(ungated):
    ungated("vllm-processor-failure")
    inner = SimpleNamespace(is_retired=True)
    assert failures.Guarded(inner).is_retired
    assert not failures.has_processors([failures.Guarded(inner)])


def ignore_fields(monkeypatch):
    monkeypatch.setattr(fields, "make_penalties", lambda sent, bias: [])


def pass_errors(monkeypatch):
    monkeypatch.setattr(failures.Guarded, "__call__", lambda self, *args: self.processor(*args))


def lose_text(monkeypatch):
    monkeypatch.setattr(calls, "is_forced", lambda request: False)


def forget_reason(monkeypatch):
    monkeypatch.setattr(messages, "_CUT", messages._END)


def drop_end(monkeypatch):
    monkeypatch.setattr(stream_end.keep_end, "__code__", (lambda delta, finished: delta).__code__)


MUTANTS = {
    "vllm-request-fields": ignore_fields,
    "vllm-processor-failure": pass_errors,
    "vllm-unread-calls": lose_text,
    "vllm-messages-stop": forget_reason,
    "vllm-stream-end": drop_end,
}
