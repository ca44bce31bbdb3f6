"""Run a mixture-of-experts block with given experts and weights."""

from collections.abc import Callable
from typing import Any

from ...core.arrays import mx
from .parts import Overlay


def run_experts(
    call: Callable[..., Any], block: Any, x: Any, chosen: Any, weights: Any, gate: str = "gate"
) -> Any:
    """The block's weighted sum over the outputs of its ``switch_mlp``, (..., width).

    The block gets a gate that scores all chosen experts equally, so that it weights each by 1 / k,
    and a ``switch_mlp`` whose outputs are multiplied by k times the given weights. If k is a power
    of two, this adds no rounding to the release's.
    """
    count = chosen.shape[-1]
    equal = mx.zeros(chosen.shape, weights.dtype)

    def weight_outputs(x: Any, _: Any) -> Any:
        return block.switch_mlp(x, chosen) * (weights * count)[..., None]

    parts: dict[str, Any] = {
        gate: lambda x: equal,
        "switch_mlp": weight_outputs,
        "top_k": count,
        "use_expert_bias": False,
        "norm_topk_prob": False,
    }
    return call(Overlay(block, **parts), x)
