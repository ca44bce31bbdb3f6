"""(matrix, installed version, fingerprint) to a verdict with a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..core.distributions import Installed
from ..core.outcome import Status
from ..core.patch import Patch, Target
from .matrix import CompatMatrix, Rule


class Verdict(NamedTuple):
    """Whether to apply; where not, the status to report. ``reason`` is one sentence."""

    ok: bool
    reason: str
    status: Status = Status.PENDING


def find_rule(
    matrix: CompatMatrix, patch: Patch, target: Target, find: Callable[[str], Installed | None]
) -> Rule | None:
    """The rule for a target; of one that supports others, every release where they are needed.

    Args:
        matrix: of the rules.
        patch: the target's.
        target: to decide.
        find: a distribution's name to what is installed.
    """
    if not target.supports:
        return matrix.rule(patch.id, target.distribution)
    for name in dict.fromkeys(one.distribution for one in patch.targets if not one.supports):
        if judge(matrix.rule(patch.id, name), find(name), "", None).ok:
            return Rule(">=0", note=f"the patch's targets in {name} need it", declared=True)
    return None


def judge(rule: Rule | None, installed: Installed | None, name: str, body: str | None) -> Verdict:
    """Decide one target.

    A known fingerprint outranks the version string: edited builds and git installs carry a
    release's number with other code.

    Args:
        rule: the matrix's word on the patch in this distribution.
        installed: the distribution, None where it is missing.
        name: the target's qualified name, as in the rule's ``bodies``.
        body: the target's fingerprint, None where there is no source to read.
    """
    if installed is None:
        return Verdict(False, "the distribution is not installed", Status.ABSENT)
    if rule is None:
        return Verdict(False, f"the matrix has no rule for {installed.name}", Status.NOT_AFFECTED)
    verdict = _judge(rule, installed, name, body)
    return verdict._replace(reason=rule.noted(verdict.reason)) if rule.note else verdict


def _judge(rule: Rule, installed: Installed, name: str, body: str | None) -> Verdict:
    decision = rule.decide(installed.version)
    affected = rule.affected_bodies.get(name, frozenset())
    sound = rule.sound_bodies.get(name, frozenset())
    if body in affected:
        beyond = "" if decision == "affected" else ", by its body, whatever the version says"
        return Verdict(True, f"{installed} has the defect{beyond}")
    if body in sound and decision != "fixed":
        return Verdict(False, f"its body in {installed} was measured sound", Status.NOT_AFFECTED)
    if decision == "fixed":
        return Verdict(False, f"fixed upstream ({rule.fixed})", Status.FIXED_UPSTREAM)
    if decision == "clear":
        return Verdict(
            False, f"{installed.version} is outside {rule.affected}", Status.NOT_AFFECTED
        )
    if decision == "unmeasured":
        return Verdict(
            False, f"{installed} was not measured, and its body is not known", Status.DRIFTED
        )
    if body is None:
        return Verdict(True, f"{installed.version} is in {rule.affected}; no source to compare")
    if affected or sound:
        return Verdict(
            False,
            f"{installed.version} is in {rule.affected}, but its body ({body}) is not known",
            Status.DRIFTED,
        )
    return Verdict(True, f"{installed.version} is in {rule.affected}")
