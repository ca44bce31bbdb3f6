"""Jamba and ERNIE 4.5 MoE weight or choose their experts by another rule than in training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.patch import Patch, Target, around
from ..._shared.experts import mixed
from ..._shared.targets import at, models

Weights = dict[str, Any]
_BIAS = ".e_score_correction_bias"


def jamba(call: Callable[..., Any], block: Any, x: Any) -> Any:
    """The output of Jamba's experts (..., width) for hidden states of the same shape."""
    import mlx.core as mx

    scores = mx.softmax(block.router(x).astype(mx.float32), axis=-1)
    chosen = best(scores, block.num_experts_per_tok)
    return mixed(call, block, x, chosen, taken(scores, chosen).astype(x.dtype), gate="router")


def ernie(call: Callable[..., Any], block: Any, x: Any) -> Any:
    """The output of ERNIE's experts (..., width) for hidden states of the same shape."""
    bias = vars(block).get("_bias")
    if bias is None:
        return call(block, x)
    import mlx.core as mx

    scores = block.gate_act(block.gate(x).astype(mx.float32))
    chosen = best(scores + bias[0], block.k)
    weights = taken(scores, chosen)
    return mixed(
        call, block, x, chosen, weights / mx.maximum(weights.sum(-1, keepdims=True), 1e-12)
    )


def with_biases(sanitize: Callable[..., Weights], model: Any, weights: Weights) -> Weights:
    """The release's sanitized checkpoint; the layers keep the biases that it drops."""
    for number, layer in enumerate(model.layers):
        names = [n for n in weights if n.endswith(_BIAS) and f".layers.{number}.mlp." in f".{n}"]
        if names and hasattr(layer.mlp, "gate_act"):
            # No parameter of the module: it is neither loaded nor quantized.
            object.__setattr__(layer.mlp, "_bias", weights[names[0]].reshape(1, -1))
    return sanitize(model, weights)


def best(scores: Any, count: int) -> Any:
    """The indices of the highest scores, (..., count)."""
    import mlx.core as mx

    return mx.stop_gradient(mx.argpartition(-scores, kth=count - 1, axis=-1)[..., :count])


def taken(scores: Any, chosen: Any) -> Any:
    """The scores of the chosen experts."""
    import mlx.core as mx

    return mx.take_along_axis(scores, chosen, axis=-1)


JAMBA_ROUTING = Patch(
    id="jamba-routing",
    every_model=True,
    wrong_alone="jamba",
    changes_alone=True,
    summary="Jamba weights its experts too high, even for a single request",
    targets=at(models("jamba"), {"JambaSparseMoeBlock.__call__": around(jamba)}),
    probe=".probe:jamba",
    doc="""Jamba's experts weigh too much: their weights are made to sum to one.

    Why
        In training the weights of the two experts are their shares of a softmax over all experts,
        which sum to less than one. Releases take a softmax over the two alone.
    How
        The patch computes the experts and their weights by the model's rule; the release's block
        sums the experts' outputs.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        No supported release takes a softmax of the best experts.
    """,
)

ERNIE_ROUTING = Patch(
    id="ernie-routing",
    every_model=True,
    wrong_alone="ernie4_5_moe",
    changes_alone=True,
    summary="ERNIE 4.5 MoE selects the wrong experts, even for a single request",
    targets=tuple(
        Target(distribution, module, name, around(wrapper))
        for distribution, module, owner in (
            ("mlx-lm", "mlx_lm.models.ernie4_5_moe", "Model"),
            ("mlx-vlm", "mlx_vlm.models.ernie4_5_moe.language", "LanguageModel"),
        )
        for name, wrapper in (
            (f"{owner}.sanitize", with_biases),
            ("Ernie4_5_MoeMLP.__call__", ernie),
        )
    ),
    probe=".probe:ernie",
    doc="""ERNIE 4.5 MoE chooses other experts than in training: their biases are dropped.

    Why
        A published checkpoint has a bias for each expert, which affects how often the expert is
        chosen, not its weight. Releases drop it when the weights are sanitized.
    How
        Each block keeps its bias, and the experts are chosen with it; the release's block sums
        their outputs. A checkpoint that a release converted has lost the biases: load the
        published one.
    Upstream
        Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when
        Every supported release chooses with the biases.
    """,
)
