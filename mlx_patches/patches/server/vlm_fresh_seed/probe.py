"""Samples the tokens of two requests with the same prompt at temperature 1."""

from typing import Any

from ....probes.kit import NotApplicable, Result, Target, import_module, mx

_POSITIONS = list(range(24))
_VOCABULARY = 64


def probe(target: Target) -> Result:
    """Red if both get the same tokens without a seed, or different tokens with one seed."""
    try:
        samplers = import_module("mlx_vlm.server.generation")._PositionedTargetSampler
        schema = import_module("mlx_vlm.server.schemas").VLMRequest
    except (ImportError, AttributeError) as error:
        raise NotApplicable("this release's server has no positioned sampler") from error
    for sent in ({"seed": 0}, {"seed": 7}):
        if draw_answer(samplers, schema, **sent) != draw_answer(samplers, schema, **sent):
            return Result(True, f"two answers with seed {sent['seed']} differ")
    if draw_answer(samplers, schema) == draw_answer(samplers, schema):
        return Result(True, f"two requests without a seed draw the same {len(_POSITIONS)} tokens")
    return Result(False, "answers differ without a seed, and agree with one")


def draw_answer(samplers: Any, schema: Any, **sent: int) -> Any:
    request = schema.model_construct(**sent)
    sampler = samplers(temperature=1.0, top_p=1.0, seed=getattr(request, "seed", None))
    logprobs = mx.zeros((len(_POSITIONS), _VOCABULARY))
    rows = [0] * len(_POSITIONS)
    return sampler.sample_target(logprobs, row_ids=rows, positions=_POSITIONS).tolist()
