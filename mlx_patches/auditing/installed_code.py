"""The lab's evidence about the installed code, whatever its version number."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..core.distributions import Installed, source_file
from ..core.outcome import Outcome
from ..core.packages import DISTRIBUTIONS
from ..evidence import code, outside, store
from ..matrix.matrix import CompatMatrix
from .modules import Find, modules_of, package_of_models


class Match(NamedTuple):
    """The release set in which a family's installed code was measured.

    Args:
        set: the release set with the same code; empty if there is none.
        nearest: the set to compare with: that of the installed version, or the newest.
        changed: the family's modules whose code differs from the nearest set's.
    """

    set: str
    nearest: str
    changed: tuple[str, ...] = ()

    def note(self, here: Installed) -> str:
        """A sentence on how the installed code differs from the measured code; may be empty."""
        own = f"{here.name} {here.version}"
        if self.set:
            return f"the same code was measured as {self.set}" if self.set != own else ""
        if not self.nearest:
            return f"no release of {here.name} was measured"
        packages = {DISTRIBUTIONS[one.partition(".")[0]] for one in self.changed}
        releases = code.releases_of(self.nearest)
        theirs = " and ".join(f"{one} {releases[one]}" for one in sorted(packages & {*releases}))
        which = "its code is new"
        if here.name not in packages:
            which = "it runs code that was not measured"
        elif self.nearest == own:
            if not {*self.changed} & {*code.modules_of(own)}:
                return "the lab did not measure this model type"
            which = f"this is not the {here.version} release"
        more = f" and {len(self.changed) - 2} more" if len(self.changed) > 2 else ""
        differ = "differ" if len(self.changed) > 1 else "differs"
        return f"{which}: {', '.join(self.changed[:2])}{more} {differ} from {theirs}"


def instead(here: Installed, installed: Iterable[Installed]) -> list[str]:
    """The releases to install to get measured ones: the nearest set's, if not installed."""
    nearest = code.sets_of(here.name, here.version)[:1]
    own = set(map(str, installed))
    wanted = [f"{one} {v}" for name in nearest for one, v in code.releases_of(name).items()]
    return [one for one in wanted if one not in own] or nearest


def find_gone(matrix: CompatMatrix, release: str, outcomes: Iterable[Outcome]) -> list[str]:
    """The patches that the nearest measured release needs, but whose code this one lacks."""
    distribution, version = release.split()
    found: dict[str, set[str]] = {}
    for one in outcomes:
        if one.distribution == distribution:
            found.setdefault(one.patch, set()).add(one.status)
    nearest = code.sets_of(distribution, version)[0].split()[1]
    rules = {
        id_: matrix.rule(id_, distribution) for id_, seen in found.items() if seen == {"absent"}
    }
    return [id_ for id_, rule in rules.items() if rule and rule.decide(nearest) == "affected"]


def match_family(here: Installed, family: str) -> Match:
    names = code.sets_of(here.name, here.version)
    modules = modules_of(package_of_models(here.name), family)
    return _find(names, sorted(filter(source_file, modules)), source_file)


def match_families(here: Installed, find: Find) -> Iterator[tuple[str, Match]]:
    """The sets in which the families of an installed release were measured.

    Hashes the files that the families run, which takes 0.1 s. Follows imports only if they differ.
    """
    package = package_of_models(here.name)
    names = code.sets_of(here.name, here.version)
    for name in names[:1]:
        whole = not code.differing(name, code.modules_of(name), find)
        for family in filter(lambda one: find(f"{package}.{one}"), store.families_of(name)):
            own = () if whole else sorted(filter(find, modules_of(package, family, find)))
            yield family, _find(names, own, find)


def find_images(here: Installed, family: str, measured: str) -> outside.Pictures | None:
    """A family's single requests with images; ``measured``: the set that ``match_family`` found.

    Images are also measured in releases in which no scenario was.
    """
    names = code.sets_of(here.name, here.version, images=True)
    names = [name for name in names if family in outside.read_images(name)]
    if names and names[0] != measured:
        modules = modules_of(package_of_models(here.name), family)
        measured = _find(names, sorted(filter(source_file, modules)), source_file).set
    return outside.pictures(measured, family)


def _find(names: Sequence[str], modules: Sequence[str], find: Find) -> Match:
    nearest = names[0] if names else ""
    changed: tuple[str, ...] = ()
    for name in names:
        differs = tuple(code.differing(name, modules, find))
        if not differs:
            return Match(name, nearest)
        changed = changed or differs
    return Match("", nearest, changed)
