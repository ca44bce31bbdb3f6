"""Answers that end at the first stop string, whatever the tokens in which its text comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any


def cut(
    responses: Iterable[Any],
    stops: Sequence[str],
    stop: Callable[[], Any],
    reason: str | None = "stop",
) -> Iterator[Any]:
    """Pass on responses up to the first stop string, then stop the generation.

    Args:
        responses: the parts of an answer, each with its ``text`` and its ``finish_reason``.
        stops: the stop strings, none of them empty.
        stop: stops the generation.
        reason: the ``finish_reason`` of an answer that ends at a stop string.
    """
    held: list[Any] = []  # those whose text may be the beginning of a stop string
    for response in responses:
        if held and getattr(held[-1], "state", "") != getattr(response, "state", ""):
            yield from held
            held = []
        held.append(response)
        text = "".join(one.text for one in held)
        found = [place for word in stops if (place := text.find(word)) >= 0]
        if found:
            stop()
            yield from before(held, min(found), reason)
            return
        left = 0 if response.finish_reason else count_begun(text, stops)
        while held and len(text) - len(held[0].text) >= left:
            text = text[len(held[0].text) :]
            yield held.pop(0)
    yield from held


def before(held: Iterable[Any], place: int, reason: str | None) -> Iterator[Any]:
    """The responses before a place in their text; the last one ends the answer."""
    for response in held:
        if place < len(response.text):
            yield replace(response, text=response.text[:place], finish_reason=reason)
            return
        place -= len(response.text)
        yield response


def count_begun(text: str, stops: Iterable[str]) -> int:
    """The number of last characters that may be the beginning of a stop string."""
    sizes = (size for word in stops for size in range(1, len(word)) if text.endswith(word[:size]))
    return max(sizes, default=0)
