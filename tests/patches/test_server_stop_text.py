from types import SimpleNamespace

import pytest

from mlx_patches.patches._shared.stop_strings import cut_at_stops
from mlx_patches.patches.server.server_stop_text import patch
from mlx_patches.patches.server.server_stop_text.probe import generate_answer
from mlx_patches.probes.lm_server import make_response

from ..releases.models import module_or_skip
from .chunks import join_text, splits


@pytest.fixture
def server(ungated):
    found = module_or_skip("mlx_lm.server", "ResponseGenerator")
    ungated("server-stop-text")
    return found


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("aab##cd", ["##"], "aab"),
        ("##abcd", ["##"], ""),
        ("abcd##", ["##"], "abcd"),
        ("a#b#c##d", ["##"], "a#b#c"),
        ("ababac.", ["abac"], "ab"),
        ("abcdefg", ["ef", "cd"], "ab"),
        ("abcdefg", ["cde", "bcdx"], "ab"),
        ("abcd###", ["####"], "abcd###"),
        ("abcdefg", ["x", ""], "abcdefg"),
    ],
)
def test_answer_ends_at_first_stop_string(text, stops, wanted, server):
    for chunks in splits(text):
        responses, context = generate_answer(server, chunks, stops)
        assert join_text(responses) == wanted, chunks
        assert context._should_stop == (wanted != text)


def test_finish_reason_and_plain_responses(server):
    responses, context = generate_answer(server, ["a", "b#", "#c"], ["##"])
    # The handler of mlx-lm 0.32 treats the end of the responses as a stop.
    assert responses[-1].finish_reason == (None if hasattr(context, "text_sm") else "stop")
    responses, _ = generate_answer(server, ["a", "b"], ["##"])
    assert responses[-1].finish_reason == "length"
    for stops in ([], [""]):
        responses, _ = generate_answer(server, ["a", "##", "b"], stops)
        assert [response.text for response in responses] == ["a", "##", "b"]


def test_stop_ends_the_decode_steps_after_one_more(server):
    if not hasattr(server, "TimeBudget"):
        pytest.skip("this server decodes one step at a time")
    budget = server.TimeBudget(budget=3600)
    context = SimpleNamespace(stop=lambda: None)
    generator = SimpleNamespace(_time_budget=budget)
    responses = [make_response(server, 0, "a##")]
    args = SimpleNamespace(stop_words=["##"])
    steps = iter(budget)
    next(steps)
    _, answer = patch.end_at_stops(lambda *_: (context, responses), generator, None, args)
    list(answer)
    assert sum(1 for _ in zip(range(9), steps, strict=False)) == 1
    assert sum(1 for _ in zip(range(9), iter(budget), strict=False)) == 9


def test_release_gets_no_stop_strings():
    args, seen = SimpleNamespace(stop_words=["##", ""]), []

    def generate(generator, request, args):
        seen.append(args.stop_words)
        return SimpleNamespace(stop=print), []

    patch.end_at_stops(generate, None, None, args)
    assert (seen, args.stop_words) == ([[]], ["##", ""])


def test_text_is_streamed_early():
    arrived = []

    def responses():
        for text in ("a", "b#", "c", "d"):
            arrived.append(text)
            yield SimpleNamespace(text=text, finish_reason=None, state="normal")

    seen = [(one.text, len(arrived)) for one in cut_at_stops(responses(), ["##"], print)]
    assert seen == [("a", 1), ("b#", 3), ("c", 3), ("d", 4)]


def test_stop_string_does_not_span_reasoning():
    chunks = [("a#", "reasoning"), ("#b", "normal")]
    responses = (
        SimpleNamespace(text=text, finish_reason=None, state=state) for text, state in chunks
    )
    assert join_text(cut_at_stops(responses, ["##"], print)) == "a##b"


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"server-stop-text": ((None, None, SimpleNamespace(stop_words=[])), {})}
