"""Compares a tiny LFM2 block of experts with a plain computation of its routing rule."""

from types import SimpleNamespace
from typing import Any

from ....probes.kit import Result, Target, class_of, compare_arrays, import_module, module_of, mx

_WIDTH, _EXPERTS, _LENGTH = 16, 8, 5
TOLERANCE = 1e-5


def probe(target: Target) -> Result:
    """Red if the block's output differs from the plain computation's."""
    kind = class_of(target)
    if target.name.startswith("Lfm2Exact"):
        block = make(import_module("mlx_vlm.models.lfm2.language"))
        verifier = kind.__new__(kind)

        def run(x: Any) -> Any:
            return verifier._feed_forward(block, x)
    else:
        run = block = make(module_of(target))
    x = mx.random.normal((2, _LENGTH, _WIDTH), key=mx.random.key(1))
    expected = compute_output(block, x)
    return compare_arrays(run(x), expected, TOLERANCE)


def make(module: Any, **more: Any) -> Any:
    """Make a block whose expert biases are as large as the scores."""
    mx.random.seed(0)
    options = {
        "hidden_size": _WIDTH,
        "moe_intermediate_size": _WIDTH,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 4,
        "norm_topk_prob": True,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.0,
    }
    block = module.Lfm2MoeSparseMoeBlock(SimpleNamespace(**{**options, **more}))
    block.expert_bias = mx.random.normal((_EXPERTS,))
    return block


def compute_output(block: Any, x: Any) -> Any:
    """Sum the outputs of the experts with the highest biased scores, weighted by plain scores."""
    scores = mx.sigmoid(x @ block.gate.weight.T)
    ranks = scores + block.expert_bias if block.use_expert_bias else scores
    places = mx.argsort(mx.argsort(-ranks, axis=-1), axis=-1)
    weights = mx.where(places < block.top_k, scores, 0.0)
    if block.norm_topk_prob:
        weights = weights / weights.sum(axis=-1, keepdims=True)
    everyone = mx.broadcast_to(mx.arange(_EXPERTS), weights.shape)
    return (block.switch_mlp(x, everyone) * weights[..., None]).sum(axis=-2)
