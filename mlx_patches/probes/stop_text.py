"""Checks the handling of a stop string that begins within a token."""

from collections.abc import Iterable

from . import Result

PIECES = ("one, ", "two, EN", "D, three", " and on")
STOP = "END"


def check_stop(texts: Iterable[str], stopped: object) -> Result:
    """Red if the answer continues after the stop string, or the text before it is incomplete."""
    answer = "".join(texts)
    if answer != "one, two, ":
        return Result(True, f"{PIECES} with the stop string {STOP!r} becomes {answer!r}")
    if not stopped:
        return Result(True, "the generation goes on after the stop string")
    return Result(False, f"the answer ends with {answer!r}")
