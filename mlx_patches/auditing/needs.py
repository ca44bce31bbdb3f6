"""The patches that a model needs on the installed releases."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..activation.session import Session, session
from ..core.errors import MlxPatchesError
from ..core.files import quoted
from ..core.packages import MODEL_PACKAGES
from ..core.patch import Patch, Target
from .audit import judge_file
from .measured import verdicts_of_model
from .models import hint, implementations
from .verdict import ModelVerdict


class Need(NamedTuple):
    """A patch that a model needs in one distribution.

    Args:
        patch: the patch's id.
        effect: what the host gets wrong without it, in a sentence.
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
    """See ``mlx_patches.needs``."""
    current = session()
    found = implementations(model)
    if not found:
        installed = [name for name in MODEL_PACKAGES.values() if current.installed(name)]
        where = " or ".join(installed) or "this environment: no MLX package is installed"
        name = quoted(model)
        raise MlxPatchesError(
            f"no model type {name!r} in {where}{hint(name, current.matrix.models)}"
        )
    named = (
        need
        for one in verdicts_of_model(current, found, _has_defect(current))
        for need in _needed(current, one)
    )
    return tuple(dict.fromkeys(named))


def _has_defect(current: Session) -> Callable[[Patch, Target], bool]:
    return lambda patch, target: judge_file(current, patch, target).ok


def _needed(current: Session, verdict: ModelVerdict) -> list[Need]:
    """The needed patches of a verdict, one for each distribution whose code has the defect."""
    found = []
    for patch in map(current.registry.declared, verdict.patches):
        verdicts = [
            (target, judge_file(current, patch, target))
            for target in patch.targets
            if target.distribution in MODEL_PACKAGES.values()
        ]
        reasons = {target.distribution: v.reason for target, v in verdicts if v.ok}
        found += [Need(patch.id, patch.summary, name, why) for name, why in reasons.items()]
    return found
