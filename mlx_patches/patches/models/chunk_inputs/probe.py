"""Feeds a prompt in chunks after an earlier turn, with and without the engine's arguments."""

from typing import Any

from ....lab import LabModel, engine
from ....probes.kit import (
    TOLERANCE,
    Result,
    Target,
    compare_arrays,
    family_of,
    mx,
    require_names,
    require_own,
    tiny,
)

_EARLIER, _PROMPT, _CHUNK = (3, 9, 4), tuple(range(5, 16)), 4


def probe(target: Target) -> Result:
    """Red if the last logits depend on whether the whole prompt's inputs are passed."""
    require_own(target)
    model = tiny("mlx-vlm", family_of(target))
    return compare_arrays(
        feed_chunks(model, n_to_process=_CHUNK, **build_inputs(model)),
        feed_chunks(model),
        TOLERANCE,
    )


def build_inputs(model: LabModel) -> dict[str, Any]:
    """The arguments of the whole prompt that the engine passes with each chunk."""
    if not model.family.name.startswith("gemma"):
        return {}
    language = model.module.model
    require_names(language, "get_per_layer_inputs")
    return {"per_layer_inputs": language.get_per_layer_inputs(mx.array([_PROMPT]))}


def feed_chunks(model: LabModel, **given: Any) -> Any:
    """The last logits of the prompt, fed in chunks with the same arguments."""
    engine.forget(model)
    cache = model.make_cache()
    model.call([_EARLIER], cache)
    chunks = [_PROMPT[start : start + _CHUNK] for start in range(0, len(_PROMPT), _CHUNK)]
    return [model.call([chunk], cache, **given)[:, -1] for chunk in chunks][-1]
