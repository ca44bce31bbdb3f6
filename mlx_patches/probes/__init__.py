"""Reproducers: each is red without its patch and green with it, on a CPU, in seconds.

A probe is a function of a target: ``probe(target) -> Result``. It uses what the target's
release offers and imports that release itself; it runs in a child process of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Result:
    """What a probe saw. ``figure`` is the number behind it, where there is one."""

    red: bool
    detail: str
    figure: float | None = None


class NotApplicable(Exception):
    """The release does not have what the probe exercises; the message says what."""
