"""The result of a probe, and the exception for code that a release lacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """A probe's result. ``figure`` is the measured number, None if the probe measures none."""

    red: bool
    detail: str
    figure: float | None = None


class NotApplicable(Exception):
    """The release lacks the code that is tested; the message names that code."""
