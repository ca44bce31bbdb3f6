from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from mlx_patches.core.distributions import source_file
from mlx_patches.patches.server.vlm_unread_calls import patch
from mlx_patches.patches.server.vlm_unread_calls.probe import BROKEN, END, GOOD, START, read_answer

from .chunks import join_text

pytestmark = pytest.mark.skipif(not source_file("mlx_vlm.server"), reason="no such server here")


@dataclass(frozen=True)
class SimpleToken:
    text: str
    finish_reason: str | None = None


def check(text, size, start="<c>", end="</c>", thinking=lambda token: False):
    """The text of a chunked answer; its calls are readable if they begin with a g."""
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    tokens = [SimpleToken(chunk) for chunk in chunks[:-1]] + [SimpleToken(chunks[-1], "stop")]
    return join_text(
        patch.check_calls(
            tokens,
            start,
            end,
            lambda call: call.removeprefix(start).removesuffix(end).startswith("g"),
            thinking,
        )
    )


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain < text <c", "plain < text <c"),
        ("<c>good</c>", "<c>good</c>"),
        ("a<c>bad</c>b", "abadb"),
        ("<c>bad</c><c>good</c>", "bad<c>good</c>"),
        ("<c>good</c> <c>bad</c>", "<c>good</c> bad"),
        ("<c>bad<c>good</c>", "bad<c>good</c>"),
        ("<c>go<c>od</c>", "<c>go<c>od</c>"),
        ("<c>bad<c>worse</c>!", "badworse!"),
        ("a<c>goo", "agoo"),
        ("a<c>goo<c>g</c", "agoog</c"),
    ],
)
def test_only_readable_calls_keep_their_markers(text, wanted, size):
    assert check(text, size) == wanted


@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[C]good", "[C]good"),
        ("[C]bad", "bad"),
        ("a[C]bad\nb[C]good\nc", "abad\nb[C]good\nc"),
    ],
)
def test_calls_without_end_marker_end_with_their_line(text, wanted, size):
    assert check(text, size, "[C]", "") == wanted


def test_thinking_is_not_searched():
    assert check("<c>bad</c>", 1, thinking=lambda token: True) == "<c>bad</c>"


def test_tokens_outside_calls_are_not_held_back():
    arrived = []

    def tokens():
        for text in ("a", "b", "<c>", "g", "</c>", "c"):
            arrived.append(text)
            yield SimpleToken(text)

    checked = patch.check_calls(tokens(), "<c>", "</c>", lambda call: True, lambda token: False)
    assert [(one.text, len(arrived)) for one in checked] == [
        ("a", 1),
        ("b", 2),
        ("<c>", 5),
        ("g", 5),
        ("</c>", 5),
        ("c", 6),
    ]


def test_release_parses_what_keeps_its_markers(ungated):
    ungated("vlm-unread-calls")
    chunks = ["a", START, BROKEN, END, START, GOOD, END]
    assert join_text(read_answer(chunks)) == f"a{BROKEN}{START}{GOOD}{END}"
    assert join_text(read_answer(chunks, tools=None)) == "".join(chunks)


def test_thinking_of_an_answer_keeps_its_text(ungated):
    ungated("vlm-unread-calls")
    chunks = ["<think>", START, BROKEN, END, "</think>", START, BROKEN, END]
    assert join_text(read_answer(chunks)) == f"<think>{START}{BROKEN}{END}</think>{BROKEN}"


# A call that the check skips; no probe and no family of the lab makes one.
SKIPPED = {"vlm-unread-calls": ((None, "hi"), {"args": SimpleNamespace()})}
