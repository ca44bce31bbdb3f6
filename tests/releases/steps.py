"""The steps of a regular expression, counted by a matcher that backtracks as ``re`` does."""

import itertools
import re
from collections.abc import Callable, Iterator
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

OUTSIDE = "\x01"
# More than any linear expression takes for the longest of the texts.
_MOST = 50_000
_KINDS = {"WORD": r"\w", "DIGIT": r"\d", "SPACE": r"\s"}
_EXAMPLES = {"WORD": "w", "DIGIT": "5", "SPACE": " "}
Next = Callable[[int], bool]


class TooManyError(Exception):
    """An expression takes so many steps that they need not be counted on."""


class Matcher:
    """Counts the steps to find all matches of an expression in a text."""

    def __init__(self, expression: re.Pattern[Any]):
        pattern = expression.pattern
        if isinstance(pattern, bytes):
            pattern = pattern.decode("latin-1")
            self.flags = expression.flags | re.ASCII
        else:
            self.flags = expression.flags
        self.tree = _parser.parse(pattern, self.flags & ~re.ASCII & ~re.UNICODE)
        self.steps = 0
        self.text = ""

    def count(self, text: str) -> int:
        self.steps, self.text = 0, text
        place = 0
        while place <= len(text):
            place = max(self._end_of(self.tree, place), place + 1)
        return self.steps

    def _end_of(self, items: Any, at: int) -> int:
        """The end of the match at a place; -1 if there is none."""
        end = -1

        def note(place: int) -> bool:
            nonlocal end
            end = place
            return True

        self._match(list(items), 0, at, note)
        return end

    def _match(self, items: list[Any], index: int, at: int, done: Next) -> bool:
        if index == len(items):
            return done(at)
        self.steps += 1
        if self.steps > _MOST:
            raise TooManyError
        op, value = items[index]

        def rest(place: int) -> bool:
            return self._match(items, index + 1, place, done)

        if self._is_single(op):
            return self._single(op, value, at) and rest(at + 1)
        if op is ops.AT:
            return self._is_at(value, at) and rest(at)
        if op is ops.BRANCH:
            return any(self._match(list(one), 0, at, rest) for one in value[1])
        if op is ops.SUBPATTERN:
            return self._match(list(value[3]), 0, at, rest)
        if op is ops.ATOMIC_GROUP:
            end = self._end_of(value, at)
            return end >= 0 and rest(end)
        if op in (ops.ASSERT, ops.ASSERT_NOT):
            direction, inner = value
            start = at if direction > 0 else at - inner.getwidth()[0]
            found = start >= 0 and self._end_of(inner, start) >= 0
            return found == (op is ops.ASSERT) and rest(at)
        if op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            return self._repeat(op, *value, at, rest)
        raise NotImplementedError(op)

    def _repeat(self, op: Any, low: int, high: Any, inner: Any, at: int, rest: Next) -> bool:
        body = list(inner)
        most = len(self.text) if high is ops.MAXREPEAT else high
        if len(body) == 1 and self._is_single(body[0][0]):
            if op is ops.MIN_REPEAT:
                times = 0
                while True:
                    if times >= low and rest(at + times):
                        return True
                    if times >= most or not self._single(*body[0], at + times):
                        return False
                    times += 1
            times = 0
            while times < most and self._single(*body[0], at + times):
                times += 1
            least = times if op is ops.POSSESSIVE_REPEAT else low
            return any(rest(at + n) for n in range(times, least - 1, -1) if n >= low)
        if op is not ops.MAX_REPEAT:
            raise NotImplementedError(op)

        def again(place: int, times: int) -> bool:
            def more(end: int) -> bool:
                return end > place and again(end, times + 1)

            if times < most and self._match(body, 0, place, more):
                return True
            return times >= low and rest(place)

        return again(at, 0)

    @staticmethod
    def _is_single(op: Any) -> bool:
        return op in (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)

    def _single(self, op: Any, value: Any, at: int) -> bool:
        self.steps += 1
        if not 0 <= at < len(self.text):
            return False
        letters = {self.text[at]}
        if self.flags & re.IGNORECASE:
            letters = {self.text[at].lower(), self.text[at].upper()}
        if op is ops.ANY:
            return bool(self.flags & re.DOTALL) or self.text[at] != "\n"
        if op is ops.IN:
            return any(_is_in(value, ord(letter)) for letter in letters)
        return (value in map(ord, letters)) == (op is ops.LITERAL)

    def _is_at(self, kind: Any, at: int) -> bool:
        end = len(self.text)
        lines = self.flags & re.MULTILINE
        if kind in (ops.AT_BEGINNING, ops.AT_BEGINNING_STRING):
            here = lines and kind is ops.AT_BEGINNING and self.text[at - 1 : at] == "\n"
            return at == 0 or bool(here)
        if kind is ops.AT_END_STRING:
            return at == end
        if kind is ops.AT_END:
            return at == end or (self.text[at] == "\n" and (bool(lines) or at == end - 1))
        raise NotImplementedError(kind)


def _is_in(members: list[Any], code: int) -> bool:
    found, negated = False, False
    for op, value in members:
        if op is ops.NEGATE:
            negated = True
        elif op is ops.LITERAL:
            found |= value == code
        elif op is ops.RANGE:
            found |= value[0] <= code <= value[1]
        elif op is ops.CATEGORY:
            name = str(value).removeprefix("CATEGORY_")
            inside = re.match(_KINDS[name.removeprefix("NOT_")], chr(code)) is not None
            found |= inside != name.startswith("NOT_")
        else:
            raise NotImplementedError(op)
    return found != negated


def hostile(expression: re.Pattern[Any], times: int) -> Iterator[str]:
    """Texts that repeat an expression's words after its beginning, also cut short."""
    letters, runs = {OUTSIDE: None, "\n": None}, {}
    _collect(Matcher(expression).tree, letters, runs)
    alphabet, first = list(letters)[:12], list(runs)[:4]
    words = {
        *alphabet,
        *map("".join, itertools.permutations(alphabet[:4], 2)),
        *first,
        *(run + letter for run in first for letter in alphabet[:4]),
    }
    for word in sorted(words):
        for start in ("", *first):
            yield start + word * times + OUTSIDE


def _collect(tree: Any, letters: dict[str, None], runs: dict[str, None]) -> None:
    run = ""
    for op, value in tree:
        if op is ops.LITERAL:
            letters[chr(value)] = None
            run += chr(value)
            continue
        if len(run) > 1:
            runs[run] = None
        run = ""
        if op is ops.IN:
            for kind, one in value:
                if kind is ops.LITERAL:
                    letters[chr(one)] = None
                elif kind is ops.RANGE:
                    letters[chr(one[1])] = None
                elif kind is ops.CATEGORY:
                    name = str(one).removeprefix("CATEGORY_").removeprefix("NOT_")
                    letters[_EXAMPLES[name]] = None
        elif op is ops.BRANCH:
            for one in value[1]:
                _collect(one, letters, runs)
        elif op is ops.SUBPATTERN:
            _collect(value[3], letters, runs)
        elif op in (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT):
            _collect(value[2], letters, runs)
        elif op is ops.ATOMIC_GROUP:
            _collect(value, letters, runs)
        elif op in (ops.ASSERT, ops.ASSERT_NOT):
            _collect(value[1], letters, runs)
    if len(run) > 1:
        runs[run] = None


def backtracks(expression: re.Pattern[Any], times: int = 24) -> str:
    """A text on which the steps grow faster than its length; empty if there is none."""
    matcher = Matcher(expression)
    pairs = zip(hostile(expression, times), hostile(expression, 4 * times), strict=True)
    for short, long in pairs:
        try:
            few, many = matcher.count(short), matcher.count(long)
        except TooManyError:
            return f"more than {_MOST} steps for {short[:60]!r} or four times as much"
        if many > 6 * few:
            return f"{few} and {many} steps for {short[:60]!r} and four times as much"
    return ""
