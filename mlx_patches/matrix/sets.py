"""Sets of releases that cannot work together, and defects that no patch repairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from .ranges import are_all_within


class BrokenSet(NamedTuple):
    """Releases that cannot work together, why, and what to install."""

    when: Mapping[str, str]
    reason: str
    remedy: str

    def matches(self, versions: Mapping[str, str]) -> bool:
        """True where every named distribution is installed at a version in its range."""
        return are_all_within(self.when, versions)


class Warned(NamedTuple):
    """A defect of these releases that no patch can repair; it was reported, not measured.

    Args:
        when: distribution to the versions that have it; all must be installed.
        effect: what a user sees, and when.
        remedy: what to install, or to switch off.
        threads: where it was reported, as ``repository#number``.
        device: ``metal`` if only Apple's GPUs have it; empty for all.
    """

    when: Mapping[str, str]
    effect: str
    remedy: str
    threads: Sequence[str]
    device: str = ""

    def matches(self, versions: Mapping[str, str], devices: Collection[str]) -> bool:
        """True where the releases are installed and this machine has the device."""
        return (not self.device or self.device in devices) and are_all_within(self.when, versions)
