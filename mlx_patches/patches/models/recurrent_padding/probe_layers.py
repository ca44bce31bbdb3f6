"""Announces right padding to a tiny model's recurrent layers, and compares each row's states."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from ....core.patch import Target
from ....probes import NotApplicable, Result
from ....probes.batch_invariance import tiny
from .batch import announced
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


# Patches for position defects of some of the families.
_OTHERS = ("offset-alias", "mask-by-offset")


def compare_states(target: Target, model: Any) -> float:
    """The largest difference between states in the batch and alone, relative to their scale."""
    import mlx.core as mx

    from ....lab import engine
    from ..._shared.rows import recurrent

    # The caches announce no padding, so the layers can know of it only from ``announced``.
    cache = engine.batch_cache(model, [0] * len(PROMPTS))
    for layer in recurrent(cache):
        layer.left_padding = layer.lengths = None
    longest = max(map(len, PROMPTS))
    ends = [(0, len(prompt)) for prompt in PROMPTS]
    engine.forget(model)
    with announced(ends, longest, [True] * len(PROMPTS)):
        model.call([prompt + [0] * (longest - len(prompt)) for prompt in PROMPTS], cache)
    worst = 0.0
    for row, prompt in enumerate(PROMPTS):
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
