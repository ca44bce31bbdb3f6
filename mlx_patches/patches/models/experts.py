"""A mixture-of-experts block that is told which experts to ask and how much each one counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..parts import Shown


def mixed(call: Callable[..., Any], block: Any, x: Any, chosen: Any, weights: Any) -> Any:
    """The block's own sum over experts of its ``switch_mlp``.

    The block gets a gate that finds all chosen experts equally good, so that it gives each of
    them 1 / k, and experts whose answers are weighted already. With k a power of two nothing is
    rounded that the release does not round.

    Args:
        call: the block's ``__call__`` as the release has it.
        x: the hidden states, (..., width).
        chosen: the experts' numbers, (..., k).
        weights: what each counts, of the same shape.
    """
    import mlx.core as mx

    count = chosen.shape[-1]
    equal = mx.zeros(chosen.shape, weights.dtype)

    def answers(x: Any, _: Any) -> Any:
        return block.switch_mlp(x, chosen) * (weights * count)[..., None]

    shown = Shown(
        block,
        gate=lambda x: equal,
        switch_mlp=answers,
        top_k=count,
        use_expert_bias=False,
        norm_topk_prob=False,
    )
    return call(shown, x)
