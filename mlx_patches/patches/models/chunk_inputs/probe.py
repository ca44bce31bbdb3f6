"""Feeds a prompt in pieces after an earlier turn, with and without what mlx-vlm's engine adds."""

from __future__ import annotations

from typing import Any

from ....core.patch import Target
from ....lab import LabModel, engine
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import TOLERANCE, family_of, off_by, tiny
from ....probes.fixtures import require_own

_EARLIER, _PROMPT, _PIECE = (3, 9, 4), tuple(range(5, 16)), 4


def probe(target: Target) -> Result:
    """Red where the last logits differ from those of pieces without the whole prompt's inputs."""
    require_own(target)
    model = tiny("mlx-vlm", family_of(target))
    return off_by(read(model, n_to_process=_PIECE, **whole_inputs(model)), read(model), TOLERANCE)


def whole_inputs(model: LabModel) -> dict[str, Any]:
    """The arguments of the whole prompt that come with each piece.

    Raises:
        NotApplicable: the release's Gemma takes no inputs of its layers.
    """
    import mlx.core as mx

    if not model.family.name.startswith("gemma"):
        return {}
    language = model.module.model
    if not hasattr(language, "get_per_layer_inputs"):
        raise NotApplicable("this release's model has no inputs of its layers")
    return {"per_layer_inputs": language.get_per_layer_inputs(mx.array([_PROMPT]))}


def read(model: LabModel, **given: Any) -> Any:
    """The last logits of the prompt, read in pieces with the same arguments."""
    engine.forget(model)
    cache = model.make_cache()
    model.call([_EARLIER], cache)
    pieces = [_PROMPT[start : start + _PIECE] for start in range(0, len(_PROMPT), _PIECE)]
    return [model.call([piece], cache, **given)[:, -1] for piece in pieces][-1]
