"""mlx_vlm.server with tools: an unreadable or unfinished call is lost, or ends its stream.

Why: The server removes the text between the markers of a tool call from a stream before it parses
    it. If the parser cannot read it, the client gets neither a call nor the text. mlx-vlm 0.7.9 and
    later stream the arguments of a call as they are generated, and end the stream with an error if
    the whole turns out to be unreadable, or is cut by ``max_tokens``.
How: The tokens of a call are held back until it is complete. If the release cannot parse it, its
    markers are removed, and it is content like any other text, streamed or not. Calls are streamed
    whole, as before mlx-vlm 0.7.9. Thinking, and requests without tools, are not searched.
Upstream: Not fixed in mlx-vlm 0.7.10. The server of mlx-vlm below 0.5 is not repaired.
Retire when: The server returns the text of a call that it cannot read.
"""

from __future__ import annotations

import importlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from ....core.verbs import Function, Patch, result
from ..._shared.targets import vlm_server
from ..._shared.vlm_calls import find_parser
from ..._shared.vlm_sections import Sections, find_thinking
from ..._shared.vlm_tokens import Tokens


def add_parser(built: Any, request: Any, processor: Any) -> Any:
    """The generation arguments of a request, with the parser of its calls."""
    if parser := find_parser(request, processor):
        built.call_parser = parser
        # The release converts the tools of other endpoints; parsers use them for types only.
        is_plain = all(isinstance(one, dict) and "function" in one for one in request.tools)
        built.call_tools = request.tools if is_plain else None
    return built


def has_parser(args: Any) -> bool:
    """Whether a request has tools whose calls can be parsed."""
    return hasattr(args, "call_parser")


def check_answer(answer: tuple[Any, Any], prompt: Any, args: Any) -> tuple[Any, Any]:
    """The context of a request and its tokens, whose calls are all readable."""
    return answer[0], Tokens(answer[1], read_calls(answer[1], prompt, args))


def read_calls(tokens: Any, prompt: Any, args: Any) -> Iterator[Any]:
    """The tokens of an answer in which every call is readable."""
    parser, tools = args.call_parser, args.call_tools
    process = importlib.import_module("mlx_vlm.server").process_tool_calls

    def is_readable(call: str) -> bool:
        found = process(call, parser, tools)
        return bool(found["calls"] if isinstance(found, dict) else found.calls)

    markers = parser.tool_call_start, parser.tool_call_end
    thinking = Sections(find_thinking(args), str(prompt))
    return check_calls(tokens, *markers, is_readable, thinking.has)


def check_calls(
    tokens: Iterable[Any], start: str, end: str, is_readable: Function, is_thinking: Function
) -> Iterator[Any]:
    """Yield tokens, without the markers of calls that are unreadable or not complete."""
    held = Held(start, end)
    for token in tokens:
        if not held.is_in_call and is_thinking(token):
            yield from held.release_all()
            yield token
            continue
        is_last = bool(token.finish_reason)
        held.push(token)
        while call := held.find_call(is_last):
            reader = is_readable if held.is_complete else None
            held.leave_call(find_faults(call, start, end, reader))
        yield from held.release(is_last)
    yield from held.release_all()


class Held:
    """The tokens of an answer that are held back until the calls in their text are checked.

    A call without an end marker ends with its line, or with the answer.
    """

    def __init__(self, start: str, end: str):
        self._start, self._end = start, end
        self._tokens: deque[Any] = deque()
        self._text = ""
        self._begin, self._stop = -1, 0  # of a call in the text; it is negative outside calls
        self._searched = 0
        self.is_complete = False  # the call that was found

    @property
    def is_in_call(self) -> bool:
        """Whether the end of a call is still to come."""
        return self._begin >= 0

    def push(self, token: Any) -> None:
        """Hold a token back."""
        self._tokens.append(token)
        self._text += token.text

    def find_call(self, is_last: bool) -> str:
        """The next call, which is not complete if the answer ends in it; empty if there is none."""
        text, end = self._text, self._end or "\n"
        if not self.is_in_call:
            self._begin = text.find(self._start, self._searched)
            if not self.is_in_call:
                self._searched = len(text) - count_begun(text[self._searched :], self._start)
                return ""
            self._searched = self._begin + len(self._start)
        stop = text.find(end, self._searched)
        if stop < 0 and not is_last:
            self._searched = max(self._searched, len(text) - len(self._end))
            return ""
        self.is_complete = stop >= 0 or not self._end
        self._stop = len(text) if stop < 0 else stop + len(end)
        return text[self._begin : self._stop]

    def leave_call(self, spans: list[tuple[int, int]]) -> None:
        """Go on after the call that was found, without these parts of it."""
        if spans:
            cut(self._tokens, [(self._begin + left, self._begin + right) for left, right in spans])
            self._text = "".join(one.text for one in self._tokens)
        self._searched = self._stop - sum(right - left for left, right in spans)
        self._begin = -1

    def release(self, is_last: bool) -> Iterator[Any]:
        """The tokens before the call, or the marker, that has begun."""
        ready = self._begin if self.is_in_call else len(self._text) if is_last else self._searched
        size = 0
        while self._tokens and size + len(self._tokens[0].text) <= ready:
            size += len(self._tokens[0].text)
            yield self._tokens.popleft()
        self._text, self._searched = self._text[size:], self._searched - size
        if self.is_in_call:
            self._begin -= size

    def release_all(self) -> Iterator[Any]:
        yield from self._tokens
        self._tokens.clear()
        self._text, self._searched = "", 0


def count_begun(text: str, marker: str) -> int:
    """How much of a marker a text ends with."""
    sizes = range(min(len(text), len(marker) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(marker[:size])), 0)


def find_faults(
    call: str, start: str, end: str, is_readable: Function | None
) -> list[tuple[int, int]]:
    """Where the markers are that do not belong to a readable call; the call may not be complete."""
    if is_readable and is_readable(call):
        return []
    places = [found.span() for found in re.finditer(re.escape(start), call)]
    if is_readable and len(places) > 1 and is_readable(call[places[-1][0] :]):
        return places[:-1]
    return [*places, *([(len(call) - len(end), len(call))] if is_readable and end else [])]


def cut(held: deque[Any], spans: list[tuple[int, int]]) -> None:
    """Remove parts of the text of tokens; they are in order."""
    place, left = 0, deque(spans)
    for index, token in enumerate(held):
        kept, at, end = "", place, place + len(token.text)
        while left and left[0][0] < end:
            first, last = left[0]
            kept += token.text[at - place : max(at, first) - place]
            at = max(at, min(last, end))
            if last > end:
                break
            left.popleft()
        if at > place:
            held[index] = replace(token, text=kept + token.text[at - place :])
        place = end


PATCH = Patch(
    id="vlm-unread-calls",
    targets=(
        *result(
            vlm_server("generation", "ResponseGenerator.generate"), check_answer, when=has_parser
        ),
        *result(vlm_server("app", "_build_gen_args"), add_parser, supports=True),
    ),
)
