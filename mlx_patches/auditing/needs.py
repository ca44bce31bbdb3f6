"""The patches that a model needs on the installed releases."""

from __future__ import annotations

from functools import partial
from os import PathLike
from typing import NamedTuple

from ..activation.session import session
from ..core.packages import MODEL_PACKAGES
from .audit import describe_model, judge_file, judge_model, may_need
from .models import unknown_type


class Need(NamedTuple):
    """A patch that a model needs in one distribution.

    Args:
        patch: the patch's id.
        effect: the symptom without it, in a sentence.
        distribution: the distribution whose code has the defect.
        reason: the gate's reason, in a sentence.
    """

    patch: str
    effect: str
    distribution: str
    reason: str

    def as_dict(self) -> dict[str, str]:
        """The JSON form."""
        return self._asdict()


def needs(model: str | PathLike[str]) -> tuple[Need, ...]:
    current = session()
    report = describe_model(current, model)
    if not report.families:
        raise unknown_type(report.model_type, (), ())
    verdicts = judge_model(current, report, partial(may_need, current))
    ids = [*(id_ for one in verdicts for id_ in one.patches), *report.own_patches]
    needed: dict[Need, None] = {}
    for patch in map(current.registry.find_declared, ids):
        # One per distribution whose code has the defect.
        reasons = {}
        for target in patch.targets:
            verdict = judge_file(current, patch, target)
            if target.distribution in MODEL_PACKAGES.values() and verdict.ok:
                reasons[target.distribution] = verdict.reason
        needed.update({Need(patch.id, patch.summary, *one): None for one in reasons.items()})
    return tuple(needed)
