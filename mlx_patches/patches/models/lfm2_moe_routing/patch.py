"""LFM2 MoE selects and weights the wrong experts, even for a single request.

Why: In training the gate is a sigmoid, and an expert's bias affects only how often the expert is
    chosen, not its weight. mlx-lm uses a softmax and adds the bias to the weights: it chooses other
    experts, and weights those with a large bias too high. The output gets worse, without an error.
How: The patch computes the experts and their weights as in training; the release's block sums their
    outputs. mlx-vlm verifies drafts with a copy of the block's code; the patch calls the block
    itself there, position by position. The release drops ``routed_scaling_factor``, so the patch
    ignores it too; it is 1 in the published models.
Upstream: mlx-lm 0.32.0 (#1354, commit 04a19108). Not fixed in mlx-vlm 0.7.10.
Retire when: No supported release takes a softmax of the gate.
"""

from typing import Any

from ....core.verbs import Function, Patch, mx, wrap
from ..._shared.experts import run_experts

_BLOCK = "Lfm2MoeSparseMoeBlock"


def run_block(call: Function, block: Any, x: Any) -> Any:
    """The block's output (..., width) for hidden states of the same shape."""
    if hasattr(block, "routed_scaling_factor"):  # only fixed releases have it
        return call(block, x)
    return run_experts(call, block, x, *choose_experts(block, x))


def choose_experts(block: Any, x: Any) -> tuple[Any, Any]:
    """The chosen experts' indices and weights, both (..., k)."""
    scores = mx.sigmoid(block.gate(x))
    ranks = scores.astype(mx.float32) + block.expert_bias if block.use_expert_bias else scores
    chosen = mx.stop_gradient(mx.argpartition(ranks, kth=-block.top_k, axis=-1))
    chosen = chosen[..., -block.top_k :]
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    if block.norm_topk_prob:
        weights = weights / (mx.sum(weights, axis=-1, keepdims=True) + 1e-6)
    return chosen, weights.astype(x.dtype)


def run_by_position(feed: Function, verifier: Any, feed_forward: Any, x: Any) -> Any:
    """One layer's experts for drafted tokens (rows, length, width), position by position."""
    if type(feed_forward).__name__ != _BLOCK:
        return feed(verifier, feed_forward, x)
    positions = (x[:, i : i + 1] for i in range(x.shape[1]))
    return mx.concatenate([feed_forward(one) for one in positions], axis=1)


PATCH = Patch(
    id="lfm2-moe-routing",
    every_model=True,
    wrong_solo="lfm2_moe",
    targets=(
        *wrap(f"mlx_lm.models.lfm2_moe:{_BLOCK}.__call__", run_block),
        *wrap(f"mlx_vlm.models.lfm2.language:{_BLOCK}.__call__", run_block),
        *wrap(
            "mlx_vlm.models.lfm2.speculative_verifier:Lfm2ExactSpeculativeVerifier._feed_forward",
            run_by_position,
        ),
    ),
)
