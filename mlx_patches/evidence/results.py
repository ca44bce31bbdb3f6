"""What a probe returns, and what probes and scenarios raise for code that a release lacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """A probe's result. ``figure`` is the measured number, None where the probe measures none."""

    red: bool
    detail: str
    figure: float | None = None


class NotApplicable(Exception):
    """The release lacks the code that is exercised; the message names that code."""
