"""Compares a tiny model's block of experts with a plain computation of its routing rule."""

from collections.abc import Callable
from typing import Any

from ....probes.kit import Result, Target, compare_arrays, mx, require, sum_experts, tiny_of

TOLERANCE = 1e-5


def probe_jamba(target: Target) -> Result:
    """Red if a weight is not the expert's share of all experts."""
    _, block = find_block(target, "router")
    return compare_block(block, block.router, block.num_experts_per_tok, lambda scores: scores)


def probe_ernie(target: Target) -> Result:
    """Red if the biases of a checkpoint do not affect the choice."""
    model, block = find_block(target, "gate_act")
    bias = mx.random.normal((1, block.gate.weight.shape[0]), key=mx.random.key(2))
    place = next(i for i, layer in enumerate(model.layers) if layer.mlp is block)
    model.sanitize({f"model.layers.{place}.mlp.moe_statics.e_score_correction_bias": bias})
    block.shared_experts = None
    return compare_block(block, block.gate, block.k, lambda scores: scores + bias, normal=True)


def find_block(target: Target, name: str) -> tuple[Any, Any]:
    require(target)
    model = tiny_of(target).module
    blocks = [layer.get("mlp", layer.get("feed_forward")) for layer in model.layers]
    return model, next(block for block in blocks if hasattr(block, name))


def compare_block(
    block: Any, gate: Any, count: int, rank: Callable[[Any], Any], normal: bool = False
) -> Result:
    x = mx.random.normal((1, 12, gate.weight.shape[-1]), key=mx.random.key(1))
    scores = mx.softmax(x @ gate.weight.T, axis=-1)
    places = mx.argsort(mx.argsort(-rank(scores), axis=-1), axis=-1)
    weights = mx.where(places < count, scores, 0.0)
    if normal:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    return compare_arrays(block(x), sum_experts(block, x, weights), TOLERANCE)
