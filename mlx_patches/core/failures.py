"""Counts the failures of patches in calls, and decides which patch is withdrawn.

A request never decides what the process runs: a failure that the release's code answered withdraws
nothing, however often it happens. A patch is withdrawn only if it fails on any input: a call got
its error, and no call at that attribute has ever succeeded with it. A ``security`` patch is never
withdrawn.
"""

from collections import Counter

from .guard import Failure

# A patch that has never worked has failed after this many calls.
LIMIT = 3
# How many frames of a traceback a log line names, the innermost first.
_FRAMES = 3


class Failures:
    """The failures of one patch: their number, and a description of the last one."""

    def __init__(self) -> None:
        self.last = ""
        # By path and the error's type.
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, path: str, failure: Failure) -> bool:
        """Count a failure at a target; returns whether it is the first of its kind."""
        kind = path, type(failure.error).__name__
        self._counts[kind] += 1
        self.last = f"{describe(failure.error)} in {path}"
        return self._counts[kind] == 1

    def at(self, path: str) -> int:
        return sum(count for kind, count in self._counts.items() if kind[0] == path)

    @property
    def count(self) -> int:
        return self._counts.total()

    def __str__(self) -> str:
        calls = "1 call" if self.count == 1 else f"{self.count} calls"
        return f"failed in {calls}, last: {self.last}"


def describe(error: BaseException | None) -> str:
    if error is None:
        return "None instead of a value"
    from .files import quote  # not at start-up

    try:
        return ": ".join(filter(None, (type(error).__name__, quote(error))))
    except Exception:  # raised by its own ``__str__``
        return type(error).__name__


def locate(error: BaseException | None) -> str:
    trace = error.__traceback__ if error is not None else None
    lines = []
    while trace is not None:
        lines.append(f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(lines[: -_FRAMES - 1 : -1])
