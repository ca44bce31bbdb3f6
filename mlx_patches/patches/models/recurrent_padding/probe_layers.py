"""Compares each row's recurrent states in a batch of a tiny model with those alone.

The rows have right padding, which is announced to the layers, or states of zeros.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from .batch import announced, may_start_rows
from .patch import MAMBA2

PROMPTS = ([5, 9, 2, 7, 3, 11, 4], [8, 6, 10, 3])
TOLERANCE = 1e-3


def keeps_states(target: Target) -> Result:
    """Red where a row's states differ from those alone.

    Raises:
        NotApplicable: the release has no such layer, or the lab cannot build a model with it.
    """
    from ....probes.fixtures import with_patches

    require_layer(target)
    model = build_with(target)
    with with_patches(_OTHERS):
        worst = compare_states(target, model)
    return Result(not worst <= TOLERANCE, f"states differ by {worst:.2g} of their scale", worst)


# Patches for other defects of some of the families.
_OTHERS = ("offset-alias", "mask-by-offset", "kimi-states")


def compare_states(target: Target, model: Any) -> float:
    """The largest difference between states in the batch and alone, relative to their scale."""
    worst = padded_states(target, model)
    if target.when is may_start_rows:
        worst = max(worst, joined_states(target, model))
    return worst


def padded_states(target: Target, model: Any) -> float:
    """The same for prompts with right padding."""
    longest = max(map(len, PROMPTS))
    cache = empty_batch(model)
    table = [prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS]
    with announced([(0, len(prompt)) for prompt in PROMPTS], longest):
        model.call(table, cache)
    return differ(target, model, cache, PROMPTS)


def joined_states(target: Target, model: Any) -> float:
    """The same for first tokens of rows with zeros for states, as if they had joined others."""
    import mlx.core as mx

    from ..._shared.rows import recurrent

    prompts = [prompt[:1] for prompt in PROMPTS]
    cache, fed = (empty_batch(model) for _ in range(2))
    model.call(prompts, fed)
    for held, written in zip(recurrent(cache), recurrent(fed), strict=True):
        held.cache[:] = map(mx.zeros_like, written.cache)
    model.call(prompts, cache)
    return differ(target, model, cache, prompts)


def empty_batch(model: Any) -> list[Any]:
    """The caches of a batch, which announce no padding: layers know only what is ``announced``."""
    from ....lab import engine
    from ..._shared.rows import recurrent

    engine.forget(model)
    cache = engine.batch_cache(model, [0] * len(PROMPTS))
    for layer in recurrent(cache):
        layer.left_padding = layer.lengths = None
    return cache


def differ(target: Target, model: Any, cache: Any, prompts: Sequence[Any]) -> float:
    """The largest difference of a batch's states from those alone, relative to their scale."""
    import mlx.core as mx

    from ....lab import engine
    from ..._shared.rows import recurrent

    worst = 0.0
    for row, prompt in enumerate(prompts):
        engine.forget(model)
        own = model.make_cache()
        model.call([prompt], own)
        for held, alone in zip(recurrent(cache), recurrent(own), strict=True):
            for state, expected in states_of(target, held.cache, alone.cache):
                apart = mx.abs(state[row : row + 1] - expected).max() / mx.abs(expected).max()
                worst = max(worst, float(apart.item()))
    return worst


def states_of(target: Target, held: Sequence[Any], alone: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Pairs of a layer's states, batch and alone; for ssm targets without the convolution's."""
    pairs = list(zip(held, alone, strict=True))
    return pairs[1:] if target.module.endswith(".ssm") else pairs


def require_layer(target: Target) -> None:
    """Check that the target's module itself defines the layer.

    Raises:
        NotApplicable: the module only imports it, or its class inherits the attribute.
    """
    name, _, attribute = target.name.partition(".")
    kind = getattr(importlib.import_module(target.module), name, None)
    if getattr(kind, "__module__", None) != target.module:
        raise NotApplicable(f"{target.module} defines no {name}")
    if attribute and attribute not in vars(kind):
        raise NotApplicable(f"{name} has no {attribute} of its own")


def build_with(target: Target) -> Any:
    """Build a tiny model that has the layer.

    Raises:
        NotApplicable: none can be built.
    """
    scan = target.module.endswith(".ssm")
    reason: Exception = NotApplicable("no family")
    for family in MAMBA2 if scan else (target.module.split(".")[2],):
        try:
            return tiny(target.distribution, family)
        except NotApplicable as error:
            reason = error
    raise NotApplicable(str(reason))
