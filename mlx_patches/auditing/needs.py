"""The patches that a model needs on the installed releases."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ..activation.session import session
from ..core.model_types import implementations
from ..core.packages import MODEL_PACKAGES
from .audit import judge_file, may_need
from .measured import verdicts_of_model
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


def needs(model: str) -> tuple[Need, ...]:
    current = session()
    found = implementations(model)
    if not found:
        installed = [name for name in MODEL_PACKAGES.values() if current.installed(name)]
        raise unknown_type(model, installed, current.matrix.models)
    verdicts = verdicts_of_model(current, found, partial(may_need, current))
    needed: dict[Need, None] = {}
    for patch in [current.registry.find_declared(id_) for one in verdicts for id_ in one.patches]:
        # One per distribution whose code has the defect.
        reasons = {}
        for target in patch.targets:
            verdict = judge_file(current, patch, target)
            if target.distribution in MODEL_PACKAGES.values() and verdict.ok:
                reasons[target.distribution] = verdict.reason
        needed.update({Need(patch.id, patch.summary, *one): None for one in reasons.items()})
    return tuple(needed)
