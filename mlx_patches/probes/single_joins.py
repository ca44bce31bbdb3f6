"""Has the release's batch generator take in a prompt while a single other one decodes."""

from __future__ import annotations

from .._patch import Target
from . import NotApplicable, Result

# A family that every release gets right in a batch.
_FAMILY = "paligemma"
_PROMPTS = ([5, 9, 2, 7], [8, 6, 10])
_TOKENS = 12


def probe(target: Target) -> Result:
    """Red where the generator dies, or a row says something else than alone."""
    from ..lab import EXACT, Family, NotBuilt, engine
    from ..lab.build import build
    from ..lab.compare import spoken
    from ..lab.scenarios import alone

    try:
        model = build(Family(target.distribution, _FAMILY))
    except NotBuilt as reason:
        raise NotApplicable(str(reason)) from None
    first, late = _PROMPTS
    try:
        said = engine.generate(model, [first], late, _TOKENS)
    except NotApplicable:
        raise
    except Exception as error:
        return Result(True, engine.where(error))
    cell = spoken(said, [alone(model, prompt, _TOKENS) for prompt in _PROMPTS], EXACT)
    return Result(cell.verdict == "red", cell.detail, cell.figure)
