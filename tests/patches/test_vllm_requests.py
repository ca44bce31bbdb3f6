"""vllm-mlx's requests: stop strings, dropped fields and failing processors."""

import asyncio
import contextvars
import importlib
import json
from types import SimpleNamespace

import mlx.core as mx
import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches._shared.refusals import answer_with
from mlx_patches.patches._shared.request_fields import FIELDS
from mlx_patches.patches.vllm_mlx.vllm_requests import busy, failures, left, stops
from mlx_patches.probes import NotApplicable
from mlx_patches.probes.vllm_engine import (
    collect,
    make_engine,
    make_output,
    open_simple_engine,
    stream,
)

pytestmark = pytest.mark.skipif(not source_file("vllm_mlx.engine"), reason="no vllm-mlx here")
WHOLE = "one, two, END, three and on"
HOT = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


@pytest.fixture(params=["batched:BatchedEngine", "simple:SimpleEngine"])
def engine(request):
    module, _, name = request.param.partition(":")
    kind = getattr(importlib.import_module(f"vllm_mlx.engine.{module}"), name)
    engine = make_engine(kind)
    engine._tokenizer = SimpleNamespace(eos_token_ids={0})
    engine._model = SimpleNamespace(tokenizer=engine._tokenizer)
    return engine


@pytest.fixture
def simple_engine():
    try:
        with open_simple_engine() as engine:
            yield engine
    except NotApplicable as reason:
        pytest.skip(str(reason))


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


@pytest.mark.parametrize("how", [stream, collect])
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


@pytest.mark.parametrize("processors", [None, [], [str]])
def test_only_a_request_with_processors_is_collected_from_a_stream(processors):
    """The layer also runs if another one on the same method does."""
    engine = SimpleNamespace(stream_generate=lambda prompt, logits_processors: stream_one())

    async def generate(self, prompt, logits_processors=None):
        return "released"

    async def stream_one():
        yield "streamed"

    (target,) = [one for one in failures.PATCH.targets if one.name == "BatchedEngine.generate"]
    call = target.factory(generate)
    answer = asyncio.run(call(engine, "hi", logits_processors=processors))
    assert answer == ("streamed" if processors else "released")


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [(["END"], "one, two, "), (["x", "o, E"], "one, tw"), (["on"], ""), (["d on"], WHOLE[:-4])],
)
def test_answer_ends_at_first_stop_string(stop, wanted, engine, ungated):
    ungated("vllm-stop-text")
    outputs = asyncio.run(stream(engine, stop=stop))
    assert "".join(one.new_text for one in outputs) == wanted
    assert [one.finished for one in outputs] == [*[False] * (len(outputs) - 1), True]
    assert outputs[-1].finish_reason == "stop"
    whole = asyncio.run(engine.generate("hi", stop=stop))
    assert (whole.text.strip(), whole.finish_reason) == (wanted.strip(), "stop")


@pytest.mark.parametrize("stop", [None, [], [""], ["##", "on##"], [5]])
def test_answer_without_its_stop_string_is_unchanged(stop, engine, ungated):
    ungated("vllm-stop-text")
    outputs = asyncio.run(stream(engine, stop=stop))
    assert "".join(one.new_text for one in outputs) == WHOLE
    assert outputs[-1].finish_reason == "length"
    assert not engine.closed


@pytest.mark.parametrize(
    ("chunks", "matched", "wanted"),
    [
        (["one ", "tw", ""], "two", "one "),
        (["one ", "t", "w"], None, "one tw"),
        (["one tw", "o", "!"], "o!", "one two!"),
        (["two", " and ", "t", ""], None, "two and t"),
        (["one ", "tw"], "two", "one "),  # the engine merges outputs that wait to be read
        (["one t", "wt tw"], "two", "one twt "),
    ],
)
def test_beginning_of_a_found_stop_string_is_held_back(chunks, matched, wanted):
    async def outputs():
        for number, chunk in enumerate(chunks, 1):
            # The engine strips the whole text, which ends before the stop string.
            output = make_output(wanted.strip(), chunk, number)
            output.finished, output.matched_stop = number == len(chunks), matched
            yield output

    async def read():
        return [one.new_text async for one in stops.hold_outputs(outputs(), ["two", "o!"])]

    assert "".join(asyncio.run(read())) == wanted


@pytest.mark.parametrize("given", [None, print])
def test_call_of_the_simple_engine_returns_its_answer(given, simple_engine, ungated):
    ungated("vllm-simple-hang-up")

    def answer(number, more):
        assert (left.LEFT.get() is None) is (given is print)
        return left.end_with_client(lambda logprobs: number + more)(None)

    async def run():
        return await simple_engine._run_blocking_serialized(answer, 1, on_cancel=given, more=2)

    assert asyncio.run(run()) == 3
    assert left.LEFT.get() is None


@pytest.mark.parametrize("last", ["data: [DONE]\n\n", 'event: message_stop\ndata: {"type": 1}\n\n'])
def test_failed_stream_sends_its_error(last):
    async def fail():
        yield "data: {}\n\n"
        raise answer_with(503, RuntimeError)("busy")

    async def read():
        with pytest.raises(RuntimeError):
            async for frame in busy.report_error(fail(), last):
                frames.append(frame)

    frames = []
    asyncio.run(read())
    head, _, data = frames[1].rpartition("data: ")
    assert head == ("event: error\n" if last.startswith("event") else "")
    assert json.loads(data)["error"] == {"message": "busy", "type": "api_error", "code": 503}
