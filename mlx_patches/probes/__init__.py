"""Reproducers: each is red without its patch and green with it, on a CPU, in seconds.

A probe is a function of a target: ``probe(target) -> Result``. It imports the installed release
and uses that release's own API. Each probe runs in its own child process.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """A probe's result. ``figure`` is the measured number, None where the probe measures none."""

    red: bool
    detail: str
    figure: float | None = None


class NotApplicable(Exception):
    """The release lacks the code that the probe exercises; the message names that code."""
