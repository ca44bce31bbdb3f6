"""The parts without MLX of the optional patches for vllm-mlx's requests and answers."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from mlx_patches.patches import catalogue
from mlx_patches.patches.vllm_mlx.vllm_billing_header import patch as billing_header
from mlx_patches.patches.vllm_mlx.vllm_gemma4_reasoning import patch as gemma4_reasoning
from mlx_patches.patches.vllm_mlx.vllm_json_escapes import patch as json_escapes

TEXTS = ["plain", r"\s+\d", "back\\slash", "\\", 'quote"', "tab\tline\n", "\u00e9\u0001", r"\u0041"]


@pytest.mark.parametrize("id_", ["json-escapes", "billing-header", "gemma4-reasoning"])
def test_they_are_off_unless_asked_for(id_):
    assert catalogue.builtin().get(f"vllm-{id_}").optional


# -- JSON escapes ------------------------------------------------------------------------------


class Request:
    """The used part of a web framework's request."""

    def __init__(self, body, path="/v1/messages"):
        self._body = body
        self.scope = {"path": path}

    async def body(self):
        return self._body

    async def json(self):
        return json.loads(self._body)


def parsed(body, path="/v1/messages"):
    return asyncio.run(json_escapes.parsed(Request.json, Request(body, path)))


@pytest.mark.parametrize("text", TEXTS)
def test_escapes_of_json_are_left_alone(text):
    body = json.dumps({"text": text}).encode()
    assert json_escapes.escaped(body) == body
    assert parsed(body) == {"text": text}


@pytest.mark.parametrize("text", TEXTS)
def test_a_lone_backslash_is_one_and_the_rest_means_the_same(text):
    body = f'{{"lone": "\\d \\uq", "text": {json.dumps(text)}}}'.encode()
    assert parsed(body) == {"lone": r"\d \uq", "text": text}


@pytest.mark.parametrize("body", [b"", b"{", b'{"a": 1,}', b'"\\d'])
def test_what_is_wrong_in_another_way_is_refused(body):
    with pytest.raises(json.JSONDecodeError):
        parsed(body)


def test_other_requests_are_parsed_strictly():
    with pytest.raises(json.JSONDecodeError):
        parsed(rb'"\d"', path="/v1/chat/completions")


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
    # A marker is one token, so it always arrives whole.
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
    """The text split before and after each marker."""
    for marker in (gemma4_reasoning.START, gemma4_reasoning.END):
        text = text.replace(marker, f"\0{marker}\0")
    return [piece for piece in text.split("\0") if piece]
