"""Loads a tiny model's weights together with extra tensors that published checkpoints have."""

from typing import Any

from ....probes.kit import Result, Target, mx, tiny


def probe(target: Target) -> Result:
    """Red if the extra tensors make the load fail."""
    model = make(target.module.rpartition(".")[2])
    try:
        load(model, {**weights_of(model), **spare(model)})
    except ValueError as error:
        return Result(True, " ".join(str(error).split())[:120])
    return Result(False, "the weights are loaded")


def make(family: str) -> Any:
    return tiny("mlx-lm", family).module


def weights_of(model: Any) -> dict[str, Any]:
    from mlx.utils import tree_flatten

    return dict(tree_flatten(model.parameters()))


def spare(model: Any) -> dict[str, Any]:
    """Tensors that a published checkpoint may have and this model lacks."""
    weights = weights_of(model)
    first, last = "model.layers.0.self_attn.", f"model.layers.{len(model.layers) - 1}.self_attn."
    tensors = {"lm_head.weight": mx.zeros((8, 8))}
    if "gemma4" in type(model).__module__:
        tensors = {
            name.replace(first, last): value
            for name, value in weights.items()
            if name.startswith(tuple(first + part for part in ("k_proj", "v_proj", "k_norm")))
        }
    return {name: value for name, value in tensors.items() if name not in weights}


def load(model: Any, weights: dict[str, Any]) -> None:
    if hasattr(model, "sanitize"):
        weights = model.sanitize(weights)
    model.load_weights(list(weights.items()), strict=True)
