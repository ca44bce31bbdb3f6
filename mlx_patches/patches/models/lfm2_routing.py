"""LFM2 MoE asks other experts than it was trained to ask, and weighs them wrongly.

Why
    The gate is a sigmoid, and the bias of an expert says how often it is chosen, not how much it
    counts. mlx-lm takes a softmax and adds the bias to the weights: other experts are chosen, and
    those with a large bias count more than they should. The text gets worse; nothing fails.
How
    The experts and their weights are computed as the model was trained; the release's block sums
    the experts' answers. mlx-vlm verifies drafts with a copy of the block: there each position is
    given to the block itself. A ``routed_scaling_factor`` other than 1, which the release does
    not keep, is not known here either; the published models have 1.
Upstream
    mlx-lm 0.32.0 (#1354, commit 04a19108). Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release takes a softmax of the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.patch import Patch, Target, around
from .experts import mixed

_BLOCK = "Lfm2MoeSparseMoeBlock"


def called(call: Callable[..., Any], block: Any, x: Any) -> Any:
    """The block's answer (..., width) to hidden states of the same shape."""
    if hasattr(block, "routed_scaling_factor"):  # only releases that route as they should
        return call(block, x)
    return mixed(call, block, x, *route(block, x))


def route(block: Any, x: Any) -> tuple[Any, Any]:
    """The experts' numbers and weights, both (..., k)."""
    import mlx.core as mx

    scores = mx.sigmoid(block.gate(x))
    ranks = scores.astype(mx.float32) + block.expert_bias if block.use_expert_bias else scores
    chosen = mx.stop_gradient(mx.argpartition(ranks, kth=-block.top_k, axis=-1))
    chosen = chosen[..., -block.top_k :]
    weights = mx.take_along_axis(scores, chosen, axis=-1)
    if block.norm_topk_prob:
        weights = weights / (mx.sum(weights, axis=-1, keepdims=True) + 1e-6)
    return chosen, weights.astype(x.dtype)


def verified(feed: Callable[..., Any], verifier: Any, feed_forward: Any, x: Any) -> Any:
    """A drafted block (rows, length, width) through one layer's experts, position by position."""
    if type(feed_forward).__name__ != _BLOCK:
        return feed(verifier, feed_forward, x)
    import mlx.core as mx

    positions = (x[:, i : i + 1] for i in range(x.shape[1]))
    return mx.concatenate([feed_forward(one) for one in positions], axis=1)


PATCH = Patch(
    id="lfm2-moe-routing",
    summary="LFM2 MoE asks other experts than it was trained to ask, and weighs them wrongly",
    targets=(
        Target("mlx-lm", "mlx_lm.models.lfm2_moe", f"{_BLOCK}.__call__", around(called)),
        Target("mlx-vlm", "mlx_vlm.models.lfm2.language", f"{_BLOCK}.__call__", around(called)),
        Target(
            "mlx-vlm",
            "mlx_vlm.models.lfm2.speculative_verifier",
            "Lfm2ExactSpeculativeVerifier._feed_forward",
            around(verified),
        ),
    ),
    probe="mlx_patches.probes.lfm2_routing:probe",
    module=__name__,
)
