"""Version ranges, and the releases in them.

Not for start-up: importing ``packaging`` is too slow there.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import Version


def is_within(specifier: str, version: Version) -> bool:
    return SpecifierSet(specifier).contains(version, prereleases=True)


def are_all_within(when: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether every named distribution is installed at a version in its range."""
    try:
        return all(
            name in versions and is_within(specifier, Version(versions[name]))
            for name, specifier in when.items()
        )
    except ValueError:
        return False


def find_in_both(affected: str, fixed: str) -> Version | None:
    """The lowest version found in both ranges; None if no overlap is found."""
    ranges = (affected, fixed)
    points = sorted({Version("0.dev0"), *_find_ends(ranges)})
    return next((p for p in points if all(is_within(one, p) for one in ranges)), None)


def _find_ends(ranges: Iterable[str]) -> Iterator[Version]:
    """The versions at which a range may begin or end, and a later version close to each."""
    for one in ranges:
        for specifier in SpecifierSet(one):
            if specifier.operator == "===":  # compares text, which may not be a version
                continue
            version = Version(specifier.version.removesuffix(".*"))
            yield from (version, Version(f"{version.base_version}.0.1"))


class BrokenSet(NamedTuple):
    """Releases that cannot work together, why, and what to install."""

    when: Mapping[str, str]
    reason: str
    remedy: str

    def matches(self, versions: Mapping[str, str]) -> bool:
        """Whether every named distribution is installed at a version in its range."""
        return are_all_within(self.when, versions)


class Warned(NamedTuple):
    """A defect of these releases that no patch can repair; it was reported, not measured.

    Args:
        when: distribution to the versions that have it; all must be installed.
        effect: what a user sees, and when.
        remedy: what to install or switch off.
        threads: where it was reported, as ``repository#number``.
        device: ``metal`` if only Apple's GPUs have it; empty for all.
    """

    when: Mapping[str, str]
    effect: str
    remedy: str
    threads: Sequence[str]
    device: str = ""

    def matches(self, versions: Mapping[str, str], devices: Collection[str]) -> bool:
        """Whether the releases are installed and this machine has the device."""
        return (not self.device or self.device in devices) and are_all_within(self.when, versions)
