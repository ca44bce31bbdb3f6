"""The pure parts of the optional patches for vllm-mlx's requests and answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from mlx_patches import _registry
from mlx_patches.patches.vllm_mlx import billing_header, gemma4_reasoning, json_escapes

TEXTS = ["plain", r"\s+\d", "back\\slash", "\\", 'quote"', "tab\tline\n", "\u00e9\u0001", r"\u0041"]


@pytest.mark.parametrize("id_", ["json-escapes", "billing-header", "gemma4-reasoning"])
def test_they_are_off_unless_asked_for(id_):
    assert _registry.builtin().get(f"vllm-{id_}").optional


# -- JSON escapes ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_a_body_that_parses_is_left_alone(text):
    body = json.dumps({"text": text}).encode()
    assert json_escapes.escaped(body) == body


@pytest.mark.parametrize("text", TEXTS)
def test_a_lone_backslash_is_one_and_the_rest_means_the_same(text):
    good = json.dumps(text)
    body = f'{{"lone": "\\d \\uq", "text": {good}}}'.encode()
    assert json.loads(json_escapes.escaped(body)) == {"lone": r"\d \uq", "text": text}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\\d", b'{"a": 1,}'])
def test_what_is_wrong_in_another_way_is_left_to_the_host(body):
    assert json_escapes.escaped(body) == body


def test_the_application_gets_the_whole_body_and_then_what_follows():
    sent = [
        {"type": "http.request", "body": b'"\\', "more_body": True},
        {"type": "http.request", "body": b'd"', "more_body": False},
        {"type": "http.disconnect"},
    ]
    got = []

    async def receive():
        return sent.pop(0)

    async def app(scope, receive, send):
        got.extend([await receive(), await receive()])

    lenient = json_escapes.Lenient(app)
    asyncio.run(lenient({"type": "http", "path": "/v1/messages"}, receive, None))
    assert got == [
        {"type": "http.request", "body": b'"\\\\d"', "more_body": False},
        {"type": "http.disconnect"},
    ]


@pytest.mark.parametrize(
    "scope", [{"type": "lifespan"}, {"type": "http", "path": "/v1/chat/completions"}]
)
def test_other_requests_pass_through(scope):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))

    receive, send = object(), object()
    asyncio.run(json_escapes.Lenient(app)(scope, receive, send))
    assert seen == [(scope, receive, send)]


# -- the billing line --------------------------------------------------------------------------

LINE = "x-anthropic-billing-header: cch=1;"


@pytest.mark.parametrize(
    ("system", "left"),
    [
        (f"{LINE}\nBe kind.", "Be kind."),
        (f"Be kind.\n{LINE}", "Be kind.\n"),
        (LINE.title(), ""),
        ("Say 'x-anthropic-billing-header: …'.", "Say 'x-anthropic-billing-header: …'."),
        (
            [{"type": "text", "text": LINE}, {"type": "text", "text": "A"}],
            [{"type": "text", "text": "A"}],
        ),
        ([f"{LINE}\nA", "B", {"type": "image"}], ["A", "B", {"type": "image"}]),
        (None, None),
        ("", ""),
    ],
)
def test_the_line_alone_is_left_out(system, left):
    assert billing_header.without_line(system) == left


def test_a_request_without_the_line_is_converted_as_it_is():
    request = SimpleNamespace(system="Be kind.")
    assert billing_header.converted(lambda given: given, request) is request


# -- Gemma 4's channels ------------------------------------------------------------------------

ANSWERS = {
    "plain": (None, "plain"),
    "<|channel>thought\nA\n<channel|>B": ("A", "B"),
    "<|channel>thought\nA<|channel>response\nB": ("A", "B"),
    "thought A<channel|>B": ("A", "B"),
    "<|channel>thought\nA": ("A", None),
    "<|channel>thought\nA<channel|>B<|channel>thought\nC<channel|>D": ("AC", "BD"),
    "<|channel>Hm<channel|>B": ("Hm", "B"),
    "thoughtful": (None, "thoughtful"),
}


@pytest.mark.parametrize(("answer", "meant"), ANSWERS.items())
def test_thought_and_answer_are_told_apart(answer, meant):
    assert gemma4_reasoning.whole(answer) == meant


@pytest.mark.parametrize("answer", [a for a in ANSWERS if not a.startswith("thought A")])
def test_a_longer_text_adds_to_both_and_takes_nothing_back(answer):
    # Markers are tokens of their own: they come whole.
    pieces = [p for part in split_markers(answer) for p in ([part] if part[:1] == "<" else part)]
    text, before = "", ("", "")
    for piece in pieces:
        text += piece
        now = gemma4_reasoning.split(text)
        assert all(new.startswith(old) for old, new in zip(before, now, strict=True)), text
        before = now
    reasoning, content = (part.strip() or None for part in before)
    assert (reasoning, content) == gemma4_reasoning.whole(answer)


def split_markers(text):
    """The text in pieces, its markers apart."""
    for marker in (gemma4_reasoning.START, gemma4_reasoning.END):
        text = text.replace(marker, f"\0{marker}\0")
    return [piece for piece in text.split("\0") if piece]
