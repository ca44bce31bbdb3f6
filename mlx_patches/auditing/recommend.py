"""Recommends releases in which a model is right, from the lab's evidence."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..activation.session import session
from ..core.distributions import canonical
from ..core.errors import MlxPatchesError
from ..core.files import read_packaged
from ..core.record import fields
from ..evidence import outside
from ..evidence.store import reading
from ..evidence.words import CANNOT_BATCH, GREEN, NOT_MEASURED, RED, REPAIRED, verdict_of

SUMMARY = Path(__file__).parents[1] / "evidence" / "summary.json"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Release sets, newest first, for one model of one distribution.

    ``green`` sets are right without the patches, also in single requests; ``repaired`` ones with
    them, ``red`` ones wrong with them. ``other`` has the sets that cannot batch or were not
    measured, by verdict.
    ``best_green`` is the newest of ``green``, ``best_repaired`` the newest of both; with a host,
    only sets that its requirements admit count.
    """

    distribution: str
    family: str
    green: tuple[str, ...]
    repaired: tuple[str, ...]
    red: tuple[str, ...]
    best_green: str | None
    best_repaired: str | None
    versions: Mapping[str, Mapping[str, str]]
    other: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def wrong_solo(self) -> dict[str, tuple[str, ...]]:
        """Release set to the defects of single requests that the patches do not repair."""
        found = {}
        for name in self.versions:
            held, prefill, *_ = outside.beside(name, self.family)
            cells = [*(held.defects() if held else ()), *([prefill] if prefill else ())]
            open_ = [one for one in cells if one.is_open(True, ())]
            if open_:
                found[name] = tuple(dict.fromkeys(one.words for one in open_))
        return found

    @property
    def with_images(self) -> dict[str, str]:
        """Release set to what stays wrong with images with the patches, and why."""
        found = {}
        for name in self.versions:
            wrong = []
            if any(one.is_open(True, ()) for one in outside.with_images(name, self.family)):
                wrong.append(outside.IMAGES_WHY.get(self.family, "in a batch"))
            pictures = outside.pictures(name, self.family)
            cells = pictures.cells() if pictures else ()
            if stages := [one.name for one in cells if one.is_open(True, ())]:
                wrong.append(f"single requests ({', '.join(stages)})")
            if wrong:
                found[name] = "; ".join(wrong)
        return found

    @property
    def by_word(self) -> dict[str, tuple[str, ...]]:
        """Verdict in words to the release sets with that verdict."""
        return {
            "right as released": self.green,
            "right with the patches": self.repaired,
            "wrong": self.red,
            **self.other,
        }

    def as_dict(self) -> dict[str, Any]:
        solo = {name: list(found) for name, found in self.wrong_solo.items()}
        return {
            **fields(self, "distribution", "family", "green", "repaired", "red"),
            "cannot_batch": list(self.other.get(verdict_of(CANNOT_BATCH), ())),
            "not_measured": list(self.other.get(NOT_MEASURED, ())),
            "wrong_solo": solo,
            "wrong_alone": solo,  # the former key, for one more release
            "wrong_with_images": list(self.with_images),
            **fields(self, "best_green", "best_repaired", "versions"),
        }


def recommend(
    families: Mapping[str, str], host: str | None = None, summary: Mapping[str, Any] | None = None
) -> list[Recommendation]:
    """Recommend release sets, for a host only those that its ``Requires-Dist`` admits.

    Args:
        families: distribution to the family (module) that implements the model in it.
        summary: the lab's summary; the packaged one by default.
    """
    from ..matrix.ranges import are_all_within

    summary = summary if summary is not None else load_summary()
    limits = host_limits(host) if host else {}
    found = []
    for distribution, family in families.items():
        by_result: dict[str, tuple[str, ...]] = {GREEN: (), REPAIRED: (), RED: ()}
        other: dict[str, tuple[str, ...]] = {}
        versions: dict[str, Mapping[str, str]] = {}
        refused = False
        for name, one in reversed(summary["sets"].items()):
            result = one["families"].get(family)
            if name.split()[0] != distribution or result is None:
                continue
            own = {package: limits.get(package, "") for package in one["versions"]}
            if not are_all_within(own, one["versions"]):
                refused = True
                continue
            result = include_beside(result, name, family)
            if result in by_result:
                by_result[result] += (name,)
                versions[name] = one["versions"]
            else:
                verdict = verdict_of(result)
                other[verdict] = (*other.get(verdict, ()), name)
        if not versions and not refused and verdict_of(CANNOT_BATCH) not in other:
            continue
        green, repaired, red = by_result.values()
        best = [_newest(one) for one in (green, green + repaired)]
        results = (distribution, family, green, repaired, red)
        found.append(Recommendation(*results, best[0], best[1], versions, other))
    return found


def include_beside(result: str, release: str, family: str) -> str:
    """A family's result in batches; ``repaired`` if it is right there but wrong beside them."""
    return REPAIRED if result == GREEN and list_wrong_beside(release, family) else result


def list_wrong_beside(release: str, family: str) -> list[str]:
    """What is wrong as released besides the lab's scenarios of batches."""
    held, prefill, images = outside.beside(release, family)
    pictures = outside.pictures(release, family)
    usual = [one for one in (held.defects() if held else ()) if one.is_usual]
    parts = {
        "single requests": usual,
        "decoding after a prefill": [prefill] if prefill else [],
        "batches with images": images,
        "single requests with images": pictures.cells() if pictures else (),
    }
    wrong = [k for k, cells in parts.items() if any(c.result(False, ()) == "r" for c in cells)]
    solo = [next(iter(parts))] if list_wrong_solo(release, family) else []
    return list(dict.fromkeys([*solo, *wrong]))


def list_wrong_solo(release: str, family: str) -> list[str]:
    """The patches without which a family's single requests are wrong in a release."""
    current = session()
    return list_affected(release, (one.id for one in current.registry.wrong_solo.get(family, ())))


def list_affected(release: str, ids: Iterable[str]) -> list[str]:
    """The patches whose defect a release has."""
    distribution, version = release.split()
    rules = {id_: session().matrix.rule(id_, distribution) for id_ in ids}
    return [id_ for id_, rule in rules.items() if rule and rule.decide(version) == "affected"]


def list_families() -> list[str]:
    sets = load_summary()["sets"].values()
    return list(dict.fromkeys(name for one in sets for name in one["families"]))


def load_summary() -> dict[str, Any]:
    with reading(SUMMARY):
        summary: dict[str, Any] = json.loads(read_packaged(SUMMARY))
        summary["sets"]
        return summary


def host_limits(host: str) -> dict[str, str]:
    """Distribution to the specifier that an installed host requires in this environment."""
    import importlib_metadata
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.specifiers import SpecifierSet

    try:
        required = importlib_metadata.requires(host) or []
    except importlib_metadata.PackageNotFoundError:
        raise MlxPatchesError(f"{host} is not installed here; install it or omit --host") from None
    limits: dict[str, SpecifierSet] = {}
    for line in required:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            name = canonical(requirement.name)
            # A distribution may have several lines; all of them apply.
            limits[name] = limits.get(name, SpecifierSet()) & requirement.specifier
    return {name: str(specifier) for name, specifier in limits.items()}


def _newest(names: Iterable[str]) -> str | None:
    from packaging.version import Version

    return max(names, key=lambda name: Version(name.split()[1]), default=None)
