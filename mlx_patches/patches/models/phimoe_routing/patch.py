"""Phi-3.5-MoE weights its experts by the wrong rule, even for a single request.

Why: In training ("sparsemixer"), the weight of each of the two experts is its softmax among the
    experts with scores close to its own; the second one is chosen without the best. Releases take a
    softmax of the two best scores, so the second expert's weight is far too small.
How: The patch computes the experts and their weights as in training; the release's block sums their
    outputs. "Close" means within 0.01, the ``router_jitter_noise`` of every published config, which
    releases drop.
Upstream: mlx-lm 0.32.1; mlx-vlm between 0.7.1 and 0.7.10.
Retire when: No supported release takes a softmax of the best experts.
"""

from typing import Any

from ....core.verbs import Function, Patch, family, mx, wrap
from ..._shared.experts import run_experts

# ``router_jitter_noise`` of the published configs.
JITTER = 0.01


def run_block(call: Function, block: Any, x: Any) -> Any:
    """The block's output (..., width) for hidden states of the same shape."""
    if hasattr(block, "jitter_eps"):  # only fixed releases have it
        return call(block, x)
    return run_experts(call, block, x, *choose_experts(block.gate(x), block.top_k))


def choose_experts(gates: Any, count: int) -> tuple[Any, Any]:
    """The indices and weights, both (..., count), of experts chosen by gates (..., experts)."""
    left, chosen, weights = gates, [], []
    for _ in range(count):
        best = mx.stop_gradient(mx.argmax(left, axis=-1, keepdims=True))
        top = mx.take_along_axis(left, best, axis=-1)
        far = (top - gates) / mx.maximum(mx.abs(gates), top) > 2 * JITTER
        close = mx.softmax(mx.where(far, -mx.inf, left), axis=-1, precise=True)
        chosen.append(best)
        weights.append(mx.take_along_axis(close, best, axis=-1))
        left = mx.put_along_axis(left, best, mx.array(-mx.inf, left.dtype), axis=-1)
    return mx.concatenate(chosen, axis=-1), mx.concatenate(weights, axis=-1)


PATCH = Patch(
    id="phimoe-routing",
    every_model=True,
    wrong_solo="phimoe",
    targets=wrap(family("phimoe", "PhiMoESparseMoeBlock.__call__"), run_block),
)
