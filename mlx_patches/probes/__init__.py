"""Reproducers: each is red without its patch and green with it, on a CPU, in seconds.

A probe is a function of a target: ``probe(target) -> Result``. It imports the installed release and
uses its API. Each probe runs in its own child process.
"""

from ..evidence.results import NotApplicable, Result

__all__ = ["NotApplicable", "Result"]
