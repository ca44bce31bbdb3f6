"""Compares a tiny Phi-MoE block with a plain computation of its routing rule."""

import math
from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, compare_arrays, module_with, mx, sum_experts

_WIDTH, _EXPERTS, _TOKENS, _JITTER = 16, 8, 12, 0.01
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if the block's output differs from the plain computation's."""
    block = make(module_with(target))
    x = mx.random.normal((1, _TOKENS, _WIDTH), key=mx.random.key(1))
    gates = x @ block.gate.weight.T
    weights = mx.array([[compute_weights(row) for row in rows] for rows in gates.tolist()])
    return compare_arrays(block(x), sum_experts(block, x, weights), TOLERANCE)


def make(module: Any) -> Any:
    mx.random.seed(0)
    return module.PhiMoESparseMoeBlock(
        SimpleNamespace(
            hidden_size=_WIDTH,
            intermediate_size=_WIDTH,
            num_local_experts=_EXPERTS,
            num_experts_per_tok=2,
            router_jitter_noise=_JITTER,
        )
    )


def compute_weights(gates: list[float]) -> list[float]:
    """The weight of each expert for one token.

    Two experts have a weight: the best, then the best of the rest. Its weight is its softmax
    among the remaining experts whose gates are within twice the jitter of its own.
    """
    weights, left = [0.0] * len(gates), set(range(len(gates)))
    for _ in range(2):
        best = max(left, key=gates.__getitem__)
        top = gates[best]
        close = [i for i in left if (top - gates[i]) / max(abs(gates[i]), top) <= 2 * _JITTER]
        weights[best] = 1 / sum(math.exp(gates[i] - top) for i in close)
        left.remove(best)
    return weights
