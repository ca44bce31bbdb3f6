"""The outcome of each patch in this process, with the reason."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from typing import NamedTuple

from .record import fields

# Patch ids or model types, as callers pass them; a text is also an iterable of texts.
Names = list[str] | tuple[str, ...] | Set[str]


class Status(StrEnum):
    """The state of one target of one patch."""

    APPLIED = "applied"
    PENDING = "pending"
    NOT_AFFECTED = "not-affected"
    FIXED_UPSTREAM = "fixed-upstream"
    DRIFTED = "drifted"
    CONFLICT = "conflict"
    ABSENT = "absent"
    DISABLED = "disabled"
    FAILED = "failed"
    LATE = "late"
    LOST = "lost"


# In effect now, or as soon as the module is imported.
IN_EFFECT = frozenset({Status.APPLIED, Status.PENDING})
# There is nothing to repair.
NOT_NEEDED = frozenset({Status.NOT_AFFECTED, Status.FIXED_UPSTREAM, Status.ABSENT})
REPAIRED = IN_EFFECT | NOT_NEEDED


class Verdict(NamedTuple):
    """Whether to apply a patch; if not, the status to report. ``reason`` is one sentence."""

    ok: bool
    reason: str
    status: Status = Status.PENDING


class Outcome(NamedTuple):
    """One target of one patch: its status and the reason, in a sentence.

    ``by_choice`` marks a patch that the user switched off or did not request, which is a finding
    only with ``--strict``.
    """

    patch: str
    distribution: str
    target: str
    status: Status
    reason: str
    by_choice: bool = False

    @property
    def finding(self) -> bool:
        """True if a defect is present, or may be, and is not repaired."""
        return not self.by_choice and self.status not in REPAIRED

    def as_dict(self) -> dict[str, object]:
        """The outcome as it appears in the JSON output."""
        shown = fields(self, "patch", "distribution", "target", "status", "reason", "finding")
        return {**shown, "status": str(self.status)}


class Report(tuple[Outcome, ...]):
    """A tuple of outcomes, one per patch and target."""

    __slots__ = ()

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes as a plain tuple."""
        return tuple(self)

    def with_status(self, *statuses: Status | str) -> tuple[Outcome, ...]:
        """The outcomes that have one of these statuses."""
        wanted = {Status(status) for status in statuses}
        return tuple(outcome for outcome in self if outcome.status in wanted)

    @property
    def applied(self) -> tuple[Outcome, ...]:
        """The outcomes in effect now."""
        return self.with_status(Status.APPLIED)

    @property
    def findings(self) -> tuple[Outcome, ...]:
        """The outcomes that leave a defect unrepaired."""
        return tuple(outcome for outcome in self if outcome.finding)

    @property
    def ok(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def as_dict(self) -> dict[str, object]:
        """The JSON form: ``ok``, how many outcomes have each status, and the outcomes."""
        return {
            "ok": self.ok,
            "counts": self.counts,
            "outcomes": [outcome.as_dict() for outcome in self],
        }

    @property
    def counts(self) -> dict[str, int]:
        """How many outcomes have each status, in the statuses' order."""
        found = [outcome.status for outcome in self]
        return {str(status): found.count(status) for status in Status if status in found}

    def __repr__(self) -> str:
        patches = len({outcome.patch for outcome in self.applied})
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        state = "ok" if self.ok else f"{len(self.findings)} findings"
        return f"<Report: {patches} patches in effect; {state}; targets: {counts or 'none'}>"

    def _repr_html_(self) -> str:
        """A table for notebooks: the outcomes that are in effect, or that should be."""
        from html import escape

        shown = [o for o in self if o.status not in NOT_NEEDED]
        rows = "".join(
            "<tr>"
            + "".join(f"<td>{escape(str(cell))}</td>" for cell in (*o[:1], *o[2:5]))
            + "</tr>"
            for o in shown
        )
        head = "".join(f"<th>{name}</th>" for name in ("patch", "target", "status", "reason"))
        return f"<p>{escape(repr(self))}</p><table><tr>{head}</tr>{rows}</table>"

    def __str__(self) -> str:
        return "\n".join(
            f"{outcome.status:<14} {outcome.patch}  {outcome.target}  ({outcome.reason})"
            for outcome in self
        )
