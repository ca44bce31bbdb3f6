"""Compares each row's recurrent states in a batch of a tiny model with those alone.

The rows have right padding, which is announced to the layers, or states of zeros.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from ....core.patch import Target
from ....lab import engine
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import family_of, relative, tiny
from ....probes.fixtures import require_own, with_patches
from ....probes.model_batch import PROMPTS, TOLERANCE
from ..._shared.rows import recurrent
from .batch import announced, may_start_rows
from .patch import MAMBA2


def keeps_states(target: Target) -> Result:
    """Red where a row's states differ from those alone.

    Raises:
        NotApplicable: the release has no such layer, or the lab cannot build a model with it.
    """
    require_own(target)
    model = build_with(target)
    with with_patches(_OTHERS):
        worst = padded_states(target, model)
        if target.when is may_start_rows:
            worst = max(worst, joined_states(target, model))
    return Result(not worst <= TOLERANCE, f"states differ by {worst:.2g} of their scale", worst)


# Patches for other defects of some of the families.
_OTHERS = ("offset-alias", "mask-by-offset", "kimi-states")


def padded_states(target: Target, model: Any) -> float:
    """How far the states of prompts with right padding are from those alone."""
    longest = max(map(len, PROMPTS))
    cache = empty_batch(model)
    table = [prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS]
    with announced([(0, len(prompt)) for prompt in PROMPTS], longest):
        model.call(table, cache)
    return differ(target, model, cache, PROMPTS)


def joined_states(target: Target, model: Any) -> float:
    """The same for first tokens of rows with zeros for states, as if they had joined others."""
    import mlx.core as mx

    prompts = [prompt[:1] for prompt in PROMPTS]
    cache, fed = (empty_batch(model) for _ in range(2))
    model.call(prompts, fed)
    for held, written in zip(recurrent(cache), recurrent(fed), strict=True):
        held.cache[:] = map(mx.zeros_like, written.cache)
    model.call(prompts, cache)
    return differ(target, model, cache, prompts)


def empty_batch(model: Any) -> list[Any]:
    """The caches of a batch, which announce no padding: layers know only what is ``announced``."""
    engine.forget(model)
    cache = engine.batch_cache(model, [0] * len(PROMPTS))
    for layer in recurrent(cache):
        layer.left_padding = layer.lengths = None
    return cache


def differ(target: Target, model: Any, cache: Any, prompts: Sequence[Any]) -> float:
    """The largest difference of a batch's states from those alone, relative to their scale."""
    worst = 0.0
    for row, prompt in enumerate(prompts):
        engine.forget(model)
        own = model.make_cache()
        model.call([prompt], own)
        for held, alone in zip(recurrent(cache), recurrent(own), strict=True):
            for state, expected in states_of(target, held.cache, alone.cache):
                worst = max(worst, relative(state[row : row + 1], expected))
    return worst


def states_of(target: Target, held: Sequence[Any], alone: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs of a layer's states, batch and alone; for ssm targets without the convolution's."""
    pairs = list(zip(held, alone, strict=True))
    return pairs[1:] if is_scan(target) else pairs


def build_with(target: Target) -> Any:
    """Build a tiny model that has the layer.

    Raises:
        NotApplicable: none can be built.
    """
    for family in MAMBA2 if is_scan(target) else (family_of(target),):
        with contextlib.suppress(NotApplicable):
            return tiny(target.distribution, family)
    raise NotApplicable("the lab builds no model with the layer")


def is_scan(target: Target) -> bool:
    """Whether a target is the scan of all Mamba-2 layers."""
    return target.module.endswith(".ssm")
