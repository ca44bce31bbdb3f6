import importlib
import threading
from types import SimpleNamespace

import pytest

from mlx_patches.core.arrays import mx
from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_stop_text import patch
from mlx_patches.patches.server.vlm_stop_text.probe import generate_answer, has_messages
from mlx_patches.probes.vlm_server import make_silent_generator

from .chunks import join_text, splits

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


@pytest.fixture
def build():
    server = importlib.import_module("mlx_vlm.server")
    if not hasattr(server, "ResponseGenerator"):
        pytest.skip("this release's server has no ResponseGenerator")
    return lambda **sent: server._build_gen_args(SimpleNamespace(**sent))


@pytest.mark.parametrize(
    ("text", "stop", "wanted"),
    [
        ("aab##cd", "##", "aab"),
        ("##abcd", ["##"], ""),
        ("abcd##", ["##"], "abcd"),
        ("ababac.", ["abac"], "ab"),
        ("abcdefg", ["ef", "cd"], "ab"),
        ("abcdefg", ["x", "", "fg", "cde"], "ab"),
        ("abcd###", ["####"], "abcd###"),
    ],
)
def test_answer_ends_at_first_stop_string(text, stop, wanted, build, ungated):
    ungated("vlm-stop-text")
    listed = [stop] if isinstance(stop, str) else stop
    for chunks in splits(text):
        tokens, cancelled = generate_answer(chunks, stop=stop)
        assert join_text(tokens) == wanted, chunks
        assert tokens[-1].finish_reason == ("length" if wanted == text else "stop")
        # A finished row is not cancelled.
        ends = [text.find(word) + len(word) for word in listed if word and word in text]
        assert cancelled == [7] * (min(ends, default=len(text)) <= len(text) - len(chunks[-1]))
        assert all(token.finish_reason is None for token in tokens[:-1])


def test_last_token_reports_memory(build, ungated, monkeypatch):
    ungated("vlm-stop-text")
    monkeypatch.setattr(mx, "get_peak_memory", lambda: 5e9)
    tokens, _ = generate_answer(["a", "b", "##", "c"], stop="##")
    assert [token.peak_memory for token in tokens] == [0, 0, 5]


@pytest.mark.parametrize("sent", [{}, {"stop": None}, {"stop": []}, {"stop": ""}, {"stop": [""]}])
def test_tokens_without_stop_strings_are_unchanged(sent, build, ungated):
    wanted, _ = generate_answer(["a", "##", "b"], **sent)
    ungated("vlm-stop-text")
    assert generate_answer(["a", "##", "b"], **sent) == (wanted, [])
    generator = make_silent_generator("ab")
    kind = type(generator.generate("hi")[1])
    assert type(generator.generate("hi", args=build(**sent))[1]) is kind


@pytest.mark.parametrize("stop", [5, [5], {"a": 1}, ["a", None]])
def test_other_values_are_refused(stop, build, ungated):
    ungated("vlm-stop-text")
    with pytest.raises(ValueError, match="stop must be a string or a list of strings"):
        build(stop=stop)


def test_concurrent_stop_strings(build, ungated):
    ungated("vlm-stop-text")
    generator = make_silent_generator(["one ", "two ", "three ", "four"])
    found = {}

    def ask(stop):
        found[stop] = join_text(generator.generate("hi", args=build(stop=[stop]))[1])

    threads = [threading.Thread(target=ask, args=(stop,)) for stop in ("two", "e t", "ou", "x")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"two": "one ", "e t": "on", "ou": "one two three f", "x": "one two three four"}


def test_leaving_client_cancels_row(build, ungated):
    ungated("vlm-stop-text")
    generator = make_silent_generator("abc")
    for leave in (lambda tokens: tokens.close(), lambda tokens: None):
        _, tokens = generator.generate("hi", args=build(stop="x"))
        assert next(tokens).text == "a"
        leave(tokens)
        del tokens
    assert generator.cancelled == [7, 7]


@pytest.mark.parametrize(
    ("chunks", "prompt", "wanted"),
    [
        (["a", "b#", "#c"], "hi", "ab"),
        (["<think>", "a##", "</think>", "b##c"], "hi", "<think>a##</think>b"),
        (["a##", "</think>", "b##c"], "hi <think>\n", "a##</think>b"),
        (["<", "think", ">a##", "b</th", "ink>", "c##"], "hi", "<think>a##b</think>c"),
    ],
)
def test_stop_sequences_end_a_message_after_its_thinking(chunks, prompt, wanted, build, ungated):
    if not has_messages():
        pytest.skip("this release has no /v1/messages")
    ungated("vlm-stop-text")
    sent = {"stop_sequences": ["##"]}
    tokens, cancelled = generate_answer([*chunks, "d"], "AnthropicRequest", prompt, **sent)
    assert join_text(tokens) == wanted
    assert tokens[-1].finish_reason == "stop"
    assert cancelled == [7]


def test_message_reports_the_stop_sequence(build, ungated):
    anthropic = pytest.importorskip("mlx_vlm.server.anthropic")
    ungated("vlm-stop-text")
    request = SimpleNamespace(stop_sequences=["x", "##"])
    generator = make_silent_generator(["a", "##", "b"])
    args = importlib.import_module("mlx_vlm.server")._build_gen_args(request)
    text = join_text(generator.generate("hi", args=args)[1])
    assert anthropic._apply_stop_sequences(text, request.stop_sequences) == ("a", "##")
    assert anthropic._apply_stop_sequences("a##", ["##"]) == ("a", "##")
    assert anthropic._apply_stop_sequences("a", ["##"]) == ("a", None)


def test_summary_has_no_stop_strings():
    class Request(SimpleNamespace):
        def model_copy(self, update):
            return Request(**{**vars(self), **update})

    long = Request(stop=["x"], model="m")
    assert patch.remove_stops(long) == Request(stop=None, model="m")
    assert long.stop == ["x"]
    plain = Request(model="m")
    assert patch.remove_stops(plain) is plain


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"vlm-stop-text": ((None, "hi"), {"args": SimpleNamespace()})}
