"""The gate: turns matrix, installed version and fingerprint into a verdict with a reason."""

import functools
from collections.abc import Callable

from ..core import distributions
from ..core.distributions import Installed
from ..core.outcome import Status, Verdict
from ..core.packages import UNMEASURED
from ..core.patch import Patch, Target
from ..core.resolve import Found, in_file
from .matrix import EVERY, CompatMatrix, Rule

# The fingerprint of code without a source: a release installed only as bytecode.
UNREADABLE = ""
_NOT_INSTALLED = Verdict(False, "the distribution is not installed", Status.ABSENT)


class Gate:
    """Decides targets by a matrix and the installed versions, which it looks up once."""

    def __init__(
        self, matrix: CompatMatrix, find: Callable[[str], Installed | None] = distributions.find
    ):
        self.matrix = matrix
        self.installed = functools.cache(find)

    def decide(self, patch: Patch, target: Target, found: Found | None) -> Verdict:
        """Decide whether a target needs its patch and may get it.

        ``found``: the target in this process or in its file; None if it was not looked up, since
        its module is not imported or its distribution not installed.
        """
        installed = self.installed(target.distribution)
        if installed is None:
            return _NOT_INSTALLED
        mlx = self.installed("mlx") if patch.mlx else None
        # Importing ``packaging`` is too slow at start-up. A commit's version has more parts.
        if mlx and ".".join(mlx.version.split(".")[:3]) not in patch.mlx:
            reason = f"{mlx} does not have the defect; {' and '.join(patch.mlx)} have"
            return Verdict(False, reason, Status.NOT_AFFECTED)
        rule = self._rule(patch, target)
        body = None if found is None or found.missing else found.body or UNREADABLE
        released = found is not None and found.released
        verdict = decide_by_rule(rule, installed, target.name, body, released)
        may_need = verdict.ok or verdict.status is Status.DRIFTED
        unmeasured = target.distribution in UNMEASURED
        if found and unmeasured and distributions.is_shadowed(target.distribution, target.module):
            reason = f"{target.module} is not that of {target.distribution}"
            return Verdict(False, reason, Status.ABSENT)
        if found is None:
            if verdict.ok:
                return verdict
            named = rule and target.name in {*rule.affected_bodies, *rule.sound_bodies}
            return Verdict(True, "its code decides") if named or may_need else verdict
        if found.missing:
            if found.foreign:
                return Verdict(False, found.missing, Status.CONFLICT) if may_need else verdict
            if may_need and unmeasured:  # every release of it needs the patch
                return Verdict(False, found.missing, Status.FAILED)
            if may_need and rule and rule.declared and _has_no_target(patch, target):
                reason = f"{found.missing}; {_declaration(patch, target)} names it"
                return Verdict(False, rule.add_note(reason), Status.FAILED)
            return Verdict(False, found.missing, Status.ABSENT)
        if found.foreign and may_need:
            reason = (
                f"{target.name} was replaced by {found.foreign}, which may or may not repair it:"
                " activate mlx_patches first, or remove that replacement"
            )
            return Verdict(False, reason, Status.CONFLICT)
        if found.note and may_need:
            return verdict._replace(reason=verdict.reason + found.note)
        return verdict

    def patches_for(self, model: str, distribution: str) -> tuple[str, ...]:
        """The patches that a model needs in the installed releases.

        A matrix entry holds for the release sets in which the lab measured the model. In others the
        patches of ``default`` are added, since they cannot change a correct model.
        """
        entry = self.matrix.patches_for(model, distribution)
        if self._is_measured(model, distribution):
            return entry
        return tuple(dict.fromkeys((*self.matrix.patches_for("default", distribution), *entry)))

    def _is_measured(self, model: str, distribution: str) -> bool:
        """Whether a model's entry holds for the installed releases.

        It never does for a commit, whose version does not identify its code.
        """
        measured = self.matrix.measured
        return measured is None or any(
            model not in one.get("unbuilt", ())
            and all(self.installed(name) == (name, v, None) for name, v in one["releases"].items())
            for one in measured.get(distribution, ())
        )

    def _rule(self, patch: Patch, target: Target) -> Rule | None:
        """The rule for a target; a supporting target follows the targets that depend on it."""
        if not target.supports:
            return self.matrix.rule(patch.id, target.distribution)
        for name in dict.fromkeys(one.distribution for one in patch.targets if not one.supports):
            if self._needs(patch, name):
                note = f"the patch's targets in {name} need it"
                return Rule(EVERY, note=note, declared=True)
        return None

    def _needs(self, patch: Patch, distribution: str) -> bool:
        """Whether a distribution needs a patch: by its version, else by the code in its files."""
        rule, installed = self.matrix.rule(patch.id, distribution), self.installed(distribution)
        if installed is None or rule is None:
            return False
        own = [t for t in patch.targets if t.distribution == distribution and not t.supports]
        if decide_by_rule(rule, installed, "", None).ok:
            # An unmeasured rule holds for every release, also for those with other code.
            return distribution not in UNMEASURED or not all(in_file(t).missing for t in own)
        return any(
            decide_by_rule(rule, installed, t.name, in_file(t).body or UNREADABLE).ok for t in own
        )


def _has_no_target(patch: Patch, target: Target) -> bool:
    """Whether a release has none of a patch's targets, so their names are misspelled."""
    own = [one for one in patch.targets if one.distribution == target.distribution]
    return not target.supports and all(in_file(one).missing for one in own)


def _declaration(patch: Patch, target: Target) -> str:
    file = distributions.source_file(patch.module) if patch.module else None
    line = distributions.line_of(file, target.name) if file else 0
    return f"{file}:{line}" if line else patch.id


def decide_by_rule(
    rule: Rule | None,
    installed: Installed | None,
    name: str,
    body: str | None,
    released: bool = False,
) -> Verdict:
    """Decide by fingerprint; by version only if no fingerprint can be compared.

    The code outranks its version: edited builds and git installs have a release's version with
    different code, and a new release may have an old one's code.

    Args:
        rule: the matrix's rule for the patch in this distribution; None if it has none.
        name: the target's qualified name, as in the rule's ``bodies``.
        body: the target's fingerprint; None if it was not looked up.
        released: the target's file is byte-identical to a measured release's. Then the version
            may decide that a function is sound although no probe of the patch could run in it.
    """
    if installed is None:
        return _NOT_INSTALLED
    if rule is None:
        return Verdict(False, f"the matrix has no rule for {installed.name}", Status.NOT_AFFECTED)
    verdict = _judge(rule, installed, name, body, released)
    return verdict._replace(reason=rule.add_note(verdict.reason)) if rule.note else verdict


def _judge(
    rule: Rule, installed: Installed, name: str, body: str | None, released: bool
) -> Verdict:
    decision = rule.decide(installed.version)
    affected = rule.affected_bodies.get(name, frozenset())
    sound = rule.sound_bodies.get(name, frozenset())
    if body in affected:
        beyond = "" if decision == "affected" else " (by its fingerprint, whatever the version)"
        return Verdict(True, f"{installed} has the defect{beyond}")
    if body in sound:
        reason = f"its code in {installed} was measured and is sound"
        return (
            _explain_fix(rule)
            if decision == "fixed"
            else Verdict(False, reason, Status.NOT_AFFECTED)
        )
    by_number = released and decision in ("fixed", "clear")
    if body and (affected or sound) and not by_number:
        reason = f"its code in {installed} ({body}) matches no measured release"
        return Verdict(False, reason, Status.DRIFTED)
    if decision == "fixed":
        return _explain_fix(rule)
    if decision == "clear":
        reason = f"{installed.version} is outside {rule.affected}"
        return Verdict(False, reason, Status.NOT_AFFECTED)
    if decision == "unmeasured":
        reason = f"{installed} was not measured, and there is no code to compare"
        return Verdict(False, reason, Status.DRIFTED)
    within = f"{installed.version} is in {rule.affected}"
    if body == UNREADABLE and sound:
        reason = f"{within}, but {name} has no source to compare, and some releases' code is sound"
        return Verdict(False, reason, Status.DRIFTED)
    return Verdict(True, within if body else f"{within}; no source to compare")


def _explain_fix(rule: Rule) -> Verdict:
    return Verdict(False, f"fixed upstream ({rule.fixed})", Status.FIXED_UPSTREAM)
