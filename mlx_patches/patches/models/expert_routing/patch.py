"""Jamba and ERNIE 4.5 MoE weight or select their experts by the wrong rule."""

from typing import Any

from ....core.verbs import Function, Patch, family, mx, tensors, wrap
from ..._shared.experts import run_experts

Weights = dict[str, Any]
_BIAS = ".e_score_correction_bias"


def run_jamba(call: Function, block: Any, x: Any) -> Any:
    """The output of Jamba's experts (..., width) for hidden states of the same shape."""
    scores = mx.softmax(block.router(x).astype(mx.float32), axis=-1)
    chosen = choose_best(scores, block.num_experts_per_tok)
    weights = take_scores(scores, chosen).astype(x.dtype)
    return run_experts(call, block, x, chosen, weights, gate="router")


def run_ernie(call: Function, block: Any, x: Any) -> Any:
    """The output of ERNIE's experts (..., width) for hidden states of the same shape."""
    bias = vars(block).get("_bias")
    if bias is None:
        return call(block, x)
    scores = block.gate_act(block.gate(x).astype(mx.float32))
    chosen = choose_best(scores + bias[0], block.k)
    weights = take_scores(scores, chosen)
    total = mx.maximum(weights.sum(-1, keepdims=True), 1e-12)
    return run_experts(call, block, x, chosen, weights / total)


def keep_biases(model: Any, /, weights: Weights) -> Weights:
    """Store the biases of a checkpoint in the layers, before the release drops them."""
    for number, layer in enumerate(model.layers):
        names = [n for n in weights if n.endswith(_BIAS) and f".layers.{number}.mlp." in f".{n}"]
        if names and hasattr(layer.mlp, "gate_act"):
            # Not as a parameter of the module, which would be loaded and quantized.
            object.__setattr__(layer.mlp, "_bias", weights[names[0]].reshape(1, -1))
    return weights


def choose_best(scores: Any, count: int) -> Any:
    """The indices of the highest scores, (..., count)."""
    return mx.stop_gradient(mx.argpartition(-scores, kth=count - 1, axis=-1)[..., :count])


def take_scores(scores: Any, chosen: Any) -> Any:
    return mx.take_along_axis(scores, chosen, axis=-1)


JAMBA_ROUTING = Patch(
    id="jamba-routing",
    every_model=True,
    wrong_solo="jamba",
    targets=wrap(family("jamba", "JambaSparseMoeBlock.__call__"), run_jamba),
    probe=".probe:probe_jamba",
    doc="""Jamba weights its experts too high, even for a single request.

    Why: In training the weights of the two experts are their shares of a softmax over all experts,
        which sum to less than one. Releases take a softmax over only the two.
    How: The patch computes the experts and their weights as in training; the release's block sums
        their outputs.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: No supported release takes a softmax of the best experts.
    """,
)

ERNIE_ROUTING = Patch(
    id="ernie-routing",
    every_model=True,
    wrong_solo="ernie4_5_moe",
    targets=(
        *tensors("mlx_lm.models.ernie4_5_moe:Model.sanitize", keep_biases),
        *tensors("mlx_vlm.models.ernie4_5_moe.language:LanguageModel.sanitize", keep_biases),
        *wrap(family("ernie4_5_moe", "Ernie4_5_MoeMLP.__call__"), run_ernie),
    ),
    probe=".probe:probe_ernie",
    doc="""ERNIE 4.5 MoE selects the wrong experts, even for a single request.

    Why: A published checkpoint has a bias for each expert, which affects how often the expert is
        chosen, not its weight. Releases drop it in ``sanitize``.
    How: Each block keeps its bias, and the experts are chosen with it; the release's block sums
        their outputs. Checkpoints converted by a release have lost the biases: load the published
        one.
    Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
    Retire when: Every supported release chooses with the biases.
    """,
)
