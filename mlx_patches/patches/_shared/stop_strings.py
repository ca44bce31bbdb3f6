"""Answers that end at the first stop string, whatever their tokens are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any


def read_stops(stop: Any) -> list[str]:
    """The stop strings of a request, which a server may not have checked: one or a list."""
    listed = stop if isinstance(stop, list) else [stop]
    return [word for word in listed if isinstance(word, str) and word]


def find_stop_fault(stop: Any) -> str:
    """What is wrong with the stop strings of a request; empty if they are one text or a list."""
    listed = stop if isinstance(stop, list) else [stop]
    is_right = all(isinstance(one, str) for one in listed)
    return "" if is_right else "stop must be a string or a list of strings"


def cut_at_stops(
    responses: Iterable[Any],
    stops: Sequence[str],
    stop: Callable[[str], Any],
    reason: str | None = "stop",
) -> Iterator[Any]:
    """Yield responses up to the first stop string, then call ``stop`` with it."""
    cut = Cut(stops, reason)
    for response in responses:
        passed = cut.push(response)
        if cut.ended:
            stop(cut.ended)
        yield from passed
        if cut.ended:
            return
    yield from cut.held


class Cut:
    """Takes the responses of an answer, and returns those before the first stop string.

    Attributes:
        held: responses whose text may begin a stop string.
        ended: the stop string that was found; empty until then.
    """

    def __init__(self, stops: Sequence[str], reason: str | None = "stop"):
        self._automaton = StopStrings(stops)
        self._begun, self._reason = self._automaton.nothing, reason
        self._length = 0  # of the held text
        self.held: deque[Any] = deque()
        self.ended = ""

    def push(self, response: Any) -> list[Any]:
        """The responses that are certain after one more."""
        passed = []
        if self.held and getattr(self.held[-1], "state", "") != getattr(response, "state", ""):
            passed = self._release(0)
        self.held.append(response)
        begun, found = self._begun, []
        for letter in response.text:
            self._length += 1
            begun = begun.next.get(letter) or self._automaton.advance(begun, letter)
            if begun.complete:
                found.append((self._length - begun.complete, self._length))
        if found:
            place, end = min(found)
            self.ended = "".join(one.text for one in self.held)[place:end]
            return [*passed, *take_before(self.held, place, self._reason)]
        self._begun = self._automaton.nothing if response.finish_reason else begun
        return passed + self._release(self._begun.size)

    def find_begun(self, stop: str) -> int:
        """How many characters of one of the stop strings the text ends with."""
        begun, place = self._begun, self._automaton.find(stop)
        while begun.shorter and not begun.words[0] <= place < begun.words[1]:
            begun = begun.shorter
        return begun.size

    def _release(self, size: int) -> list[Any]:
        """The held responses that end before the last ``size`` characters."""
        passed = []
        while self.held and self._length - len(self.held[0].text) >= size:
            self._length -= len(self.held[0].text)
            passed.append(self.held.popleft())
        if not size:
            self._begun, self._length = self._automaton.nothing, 0
        return passed


def take_before(held: Iterable[Any], place: int, reason: str | None) -> Iterator[Any]:
    """The responses before a place in their text; the last one ends the answer."""
    for response in held:
        if place < len(response.text):
            yield replace(response, text=response.text[:place], finish_reason=reason)
            return
        place -= len(response.text)
        yield response


class Begun:
    """A text that begins a stop string: a state of the automaton.

    Attributes:
        size: its length.
        shorter: the longest shorter text that ends it and begins a stop string; None if empty.
        complete: the length of the longest stop string that ends it; 0 if none does.
        words: where the stop strings that it begins are among the sorted ones.
        next: the state after each letter that was read.
    """

    __slots__ = ("complete", "next", "shorter", "size", "words")

    def __init__(self, size: int, shorter: Begun | None, complete: int, words: tuple[int, int]):
        self.size, self.shorter, self.complete, self.words = size, shorter, complete, words
        self.next: dict[str, Begun] = {}


class StopStrings:
    """The Aho-Corasick automaton, built only as far as the text requires.

    A client chooses the length and the number of its stop strings. Neither may cost time per token,
    and the automaton is not built for strings that the answer never begins.
    """

    def __init__(self, stops: Iterable[str]):
        self._sorted = sorted(set(stops))
        self.nothing = Begun(0, None, 0, (0, len(self._sorted)))

    def find(self, stop: str) -> int:
        """Where a stop string is among the sorted ones."""
        return bisect_left(self._sorted, stop)

    def advance(self, begun: Begun, letter: str) -> Begun:
        """The longest text that begins a stop string, after one more letter."""
        path, state = [], begun
        while letter not in state.next:
            path.append(state)
            if state.shorter is None:
                break
            state = state.shorter
        after = state.next.get(letter, self.nothing)
        for state in reversed(path):
            low, high = self._with(letter, state)
            if low < high:
                size = state.size + 1
                whole = len(self._sorted[low]) == size  # the shortest is the first
                after = Begun(size, after, size if whole else after.complete, (low, high))
            state.next[letter] = after
        return after

    def _with(self, letter: str, begun: Begun) -> tuple[int, int]:
        """Where the stop strings are that continue with a letter."""
        size, (low, high) = begun.size, begun.words

        def next_letter(word: str) -> str:
            return word[size : size + 1]

        low = bisect_left(self._sorted, letter, low, high, key=next_letter)
        return low, bisect_right(self._sorted, letter, low, high, key=next_letter)
