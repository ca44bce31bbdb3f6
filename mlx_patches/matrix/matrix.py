"""The compat matrix: which releases have which defect, and which models need which patch.

``make write`` builds it from the evidence: the compiled form that the package reads, with a
decision for every measured release, and the readable ``compat_matrix.yaml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from ..core.errors import MlxPatchesError
from ..core.files import quote, read_packaged
from ..core.packages import UNMEASURED

if TYPE_CHECKING:
    from typing import Literal

    from .ranges import BrokenSet, Warned

    # A rule's decision on a version; ``clear`` is outside of both ranges.
    Decision = Literal["affected", "fixed", "clear", "unmeasured"]

COMPILED = Path(__file__).parent / "compiled.json"
# The compiled file's format: an incomplete upgrade may leave an older mlx-patches' file.
FORMAT = 4
# The range of a rule that covers every version.
EVERY = ">=0"
_DECISIONS: dict[str, Decision] = {"a": "affected", "f": "fixed", "c": "clear"}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Rule(NamedTuple):
    """The matrix's rule for one patch in one distribution.

    Args:
        affected: the releases that have the defect, as a version specifier.
        fixed: the releases that repaired it upstream; empty if none has.
        affected_bodies: target name to the fingerprints of bodies with the defect.
        sound_bodies: the same for bodies without it.
        releases: every measured release of the distribution, oldest first.
        decided: a letter for each of these releases: the first of ``affected``, ``fixed``,
            ``clear``; empty if the rule was not compiled.
        note: appended to every reason that is based on the rule.
        declared: the ranges were declared, not measured; they also cover unmeasured releases.
    """

    affected: str
    fixed: str = ""
    affected_bodies: Mapping[str, frozenset[str]] = _NOTHING
    sound_bodies: Mapping[str, frozenset[str]] = _NOTHING
    releases: tuple[str, ...] = ()
    decided: str = ""
    note: str = ""
    declared: bool = False

    def add_note(self, reason: str) -> str:
        return f"{reason}; {self.note}" if self.note else reason

    def decide(self, version: str) -> Decision:
        """Classify a version.

        An unmeasured release between two clear ones counts as clear. Pre-releases count as members
        of a range; a local part (``+git``) does not matter.
        """
        if self.affected == EVERY:  # avoids importing what compares versions at start-up
            return "affected"
        if self.decided and version in self.releases:
            return _DECISIONS[self.decided[self.releases.index(version)]]
        from packaging.version import Version

        try:
            parsed = Version(version)
        except ValueError:  # not a version, or one with thousands of digits
            return "unmeasured"
        released = Version(parsed.public)
        side = self._side(parsed.public)
        if side != "clear" or self.declared or released in map(Version, self.releases):
            return side
        older = [v for v in self.releases if Version(v) < released]
        newer = [v for v in self.releases if Version(v) > released]
        neighbours = {self._side(v) for v in (*older[-1:], *newer[:1])}
        return "clear" if newer and neighbours == {"clear"} else "unmeasured"

    def _side(self, release: str) -> Decision:
        from packaging.version import Version

        from .ranges import is_within

        version = Version(release)
        if is_within(self.affected, version):
            return "affected"
        return "fixed" if self.fixed and is_within(self.fixed, version) else "clear"


_UNMEASURED = Rule(EVERY, note="not measured: patched in every release", declared=True)


class CompatMatrix:
    """The loaded matrix."""

    def __init__(self, document: Mapping[str, Any]):
        self._document = document
        self.releases: dict[str, tuple[str, ...]] = {
            name: tuple(versions) for name, versions in document["releases"].items()
        }
        self.always: tuple[str, ...] = tuple(document["always"])
        self._contributed: dict[str, dict[str, Rule]] = {}
        self._rules: dict[tuple[str, str], Rule | None] = {}

    @classmethod
    def builtin(cls) -> CompatMatrix:
        try:
            compiled = json.loads(read_packaged(COMPILED))
            if compiled["format"] == FORMAT:
                return cls(compiled["document"])
            problem = f"its format is {compiled['format']!r}, not {FORMAT}"
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"{type(error).__name__}: {error}"
        raise MlxPatchesError(f"{COMPILED}: {quote(problem)}: reinstall mlx-patches")

    def rule(self, patch: str, distribution: str) -> Rule | None:
        if distribution in UNMEASURED:
            return _UNMEASURED
        if patch in self._contributed:
            return self._contributed[patch].get(distribution)
        key = (patch, distribution)
        if key not in self._rules:
            self._rules[key] = self._read_rule(patch, distribution)
        return self._rules[key]

    def _read_rule(self, patch: str, distribution: str) -> Rule | None:
        rules = self._document["patches"].get(patch, {})
        raw = (json.loads(rules) if isinstance(rules, str) else rules).get(distribution)
        if raw is None:
            return None
        bodies = raw.get("bodies", {})
        return Rule(
            affected=raw["affected"],
            fixed=raw.get("fixed", ""),
            affected_bodies={k: frozenset(v.get("affected", ())) for k, v in bodies.items()},
            sound_bodies={k: frozenset(v.get("sound", ())) for k, v in bodies.items()},
            releases=self.releases.get(distribution, ()),
            decided=raw.get("decided", ""),
        )

    def contribute(self, patch: str, rules: dict[str, Rule], optional: bool = False) -> None:
        """Add the rules of another package's patch, which belongs to no model."""
        self._contributed[patch] = rules
        if not optional:
            self.always = (*self.always, patch)

    @cached_property
    def patches(self) -> tuple[str, ...]:
        return tuple(self._document["patches"])

    @cached_property
    def models(self) -> tuple[str, ...]:
        return tuple(name for name in self._document["models"] if name != "default")

    @cached_property
    def measured(self) -> Mapping[str, Sequence[Mapping[str, Any]]] | None:
        """A distribution to the release sets that its models' entries hold for.

        A set has ``releases``, a distribution to its version, and may have ``unbuilt``, the models
        that could not be built there. None if entries hold for every release.
        """
        return self._document.get("measured")

    def patches_for(self, model: str, distribution: str) -> tuple[str, ...]:
        """The patches in a model's entry for a distribution, or those of ``default``."""
        rows = self._document["models"]
        default = rows["default"].get(distribution, ())
        return tuple(rows.get(model, {}).get(distribution, default))

    @cached_property
    def broken_sets(self) -> tuple[BrokenSet, ...]:
        """Sets of releases that cannot work together."""
        from .ranges import BrokenSet

        return tuple(BrokenSet(**raw) for raw in self._document["broken_sets"])

    @cached_property
    def warnings(self) -> tuple[Warned, ...]:
        """Known defects that no patch can repair."""
        from .ranges import Warned

        return tuple(Warned(**raw) for raw in self._document.get("warnings", ()))
