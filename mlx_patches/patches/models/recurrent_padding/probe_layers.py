"""Compares each row's recurrent states in a batch of a tiny model with those of a solo run.

The rows have right padding, which is announced to the layers, or states of zeros.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from ....lab import engine
from ....probes.kit import (
    NotApplicable,
    Result,
    Target,
    family_of,
    measure_distance,
    mx,
    require_own,
    tiny,
    with_patches,
)
from ....probes.model_batch import PROMPTS, TOLERANCE, list_recurrent
from .batch import announce_padding, may_start_rows
from .patch import MAMBA2


def compare_states(target: Target) -> Result:
    """Red if a row's states differ from those of its solo run."""
    require_own(target)
    model = _build_with(target)
    with with_patches(("offset-alias", "mask-by-offset", "kimi-states")):
        worst = compare_padded(target, model)
        if target.when is may_start_rows:
            worst = max(worst, compare_joined(target, model))
    return Result(not worst <= TOLERANCE, f"states differ by {worst:.2g} of their scale", worst)


def compare_padded(target: Target, model: Any) -> float:
    """The largest difference of the states of prompts with right padding from solo runs."""
    longest = max(map(len, PROMPTS))
    cache = make_batch(model)
    table = [prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS]
    with announce_padding([(0, len(prompt)) for prompt in PROMPTS], longest):
        model.call(table, cache)
    return measure_rows(target, model, cache, PROMPTS)


def compare_joined(target: Target, model: Any) -> float:
    """The same for first tokens of rows with states of zeros, as if they had joined a batch."""
    prompts = [prompt[:1] for prompt in PROMPTS]
    cache, fed = (make_batch(model) for _ in range(2))
    model.call(prompts, fed)
    for held, written in zip(list_recurrent(cache), list_recurrent(fed), strict=True):
        held.cache[:] = map(mx.zeros_like, written.cache)
    model.call(prompts, cache)
    return measure_rows(target, model, cache, prompts)


def make_batch(model: Any) -> list[Any]:
    engine.forget(model)
    cache = engine.batch_cache(model, [0] * len(PROMPTS))
    for layer in list_recurrent(cache):
        layer.left_padding = layer.lengths = None
    return cache


def measure_rows(target: Target, model: Any, cache: Any, prompts: Sequence[Any]) -> float:
    """The largest difference of a batch's states from solo runs, relative to their scale."""
    worst = 0.0
    for row, prompt in enumerate(prompts):
        engine.forget(model)
        own = model.make_cache()
        model.call([prompt], own)
        for held, solo in zip(list_recurrent(cache), list_recurrent(own), strict=True):
            pairs = list(zip(held.cache, solo.cache, strict=True))
            # The scan does not change the convolution's state.
            for state, expected in pairs[1:] if _is_scan(target) else pairs:
                worst = max(worst, measure_distance(state[row : row + 1], expected))
    return worst


def _build_with(target: Target) -> Any:
    for family in MAMBA2 if _is_scan(target) else (family_of(target),):
        with contextlib.suppress(NotApplicable):
            return tiny(target.distribution, family)
    raise NotApplicable("the lab builds no model with the layer")


def _is_scan(target: Target) -> bool:
    return target.module.endswith(".ssm")
