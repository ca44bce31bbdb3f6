"""Which patches a model needs on what is installed."""

from __future__ import annotations

from typing import NamedTuple

from ..activation.session import Session, session
from ..core.errors import MlxPatchesError
from ..core.packages import MODEL_PACKAGES
from .audit import judge_file
from .models import implementations


class Need(NamedTuple):
    """A patch that a model needs in one distribution.

    Args:
        patch: its id.
        effect: what the host gets wrong without it, in a sentence.
        distribution: whose code has the defect.
        reason: why, in a sentence: the release is in the measured range.
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
        from difflib import get_close_matches

        close = get_close_matches(model, current.matrix.models, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        where = " or ".join(installed) or "this environment: no MLX package is installed"
        raise MlxPatchesError(f"no model type {model!r} in {where}{hint}")
    return tuple(
        need
        for distribution, name in found.items()
        for need in _needed(current, distribution, name)
    )


def _needed(current: Session, distribution: str, model: str) -> list[Need]:
    """What a model's entry names and the installed release has the defect of."""
    ids = (*current.matrix.always, *current.matrix.patches_for(model, distribution))
    found = []
    for patch in map(current.registry.get, dict.fromkeys(ids)):
        verdicts = [
            (target, judge_file(current, patch, target))
            for target in patch.targets
            if target.distribution in MODEL_PACKAGES.values()
        ]
        reasons = {target.distribution: v.reason for target, v in verdicts if v.ok}
        found += [Need(patch.id, patch.summary, name, why) for name, why in reasons.items()]
    return found
