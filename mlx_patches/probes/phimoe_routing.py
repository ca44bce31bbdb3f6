"""Feeds a tiny Phi-MoE block, and computes what its rule answers, number by number."""

from __future__ import annotations

import importlib
import math
from types import SimpleNamespace
from typing import Any

from ..core.patch import Target
from . import NotApplicable, Result

_WIDTH, _EXPERTS, _TOKENS, _JITTER = 16, 8, 12, 0.01
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red where the answer is another one."""
    import mlx.core as mx

    block = make(importlib.import_module(target.module))
    x = mx.random.normal((1, _TOKENS, _WIDTH), key=mx.random.key(1))
    wanted = answered(block, x)
    worst = (mx.abs(block(x) - wanted).max() / mx.abs(wanted).max()).item()
    return Result(not worst <= TOLERANCE, f"off by {worst:.2g} of the answer's scale", worst)


def make(module: Any) -> Any:
    """A block with two experts a token."""
    import mlx.core as mx

    kind = getattr(module, "PhiMoESparseMoeBlock", None)
    if kind is None:
        raise NotApplicable("this release has no such block")
    mx.random.seed(0)
    return kind(
        SimpleNamespace(
            hidden_size=_WIDTH,
            intermediate_size=_WIDTH,
            num_local_experts=_EXPERTS,
            num_experts_per_tok=2,
            router_jitter_noise=_JITTER,
        )
    )


def answered(block: Any, x: Any) -> Any:
    """Every expert's answer, summed by the rule's weights."""
    import mlx.core as mx

    gates = x @ block.gate.weight.T
    weights = mx.array([[weighed(row) for row in rows] for rows in gates.tolist()])
    everyone = mx.broadcast_to(mx.arange(_EXPERTS), weights.shape)
    return (block.switch_mlp(x, everyone) * weights[..., None]).sum(axis=-2)


def weighed(gates: list[float]) -> list[float]:
    """What each expert counts for one token.

    The best expert, and the best of the others, each by its share among the experts that are
    left and come within twice the jitter of it.
    """
    weights, left = [0.0] * len(gates), set(range(len(gates)))
    for _ in range(2):
        best = max(left, key=gates.__getitem__)
        top = gates[best]
        close = [i for i in left if (top - gates[i]) / max(abs(gates[i]), top) <= 2 * _JITTER]
        weights[best] = 1 / sum(math.exp(gates[i] - top) for i in close)
        left.remove(best)
    return weights
