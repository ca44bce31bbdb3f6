"""An answer whose tokens do not end where its stop string begins, and what must become of it."""

from __future__ import annotations

from collections.abc import Iterable

from . import Result

PIECES = ("one, ", "two, EN", "D, three", " and on")
STOP = "END"


def judged(texts: Iterable[str], stopped: object) -> Result:
    """Red where the answer goes on after the stop string, or the text before it is not whole.

    Args:
        texts: what the server says of ``PIECES``.
        stopped: whether it has stopped the generation.
    """
    said = "".join(texts)
    if said != "one, two, ":
        return Result(True, f"{PIECES} with the stop string {STOP!r} becomes {said!r}")
    if not stopped:
        return Result(True, "the generation goes on after the stop string")
    return Result(False, f"the answer ends with {said!r}")
