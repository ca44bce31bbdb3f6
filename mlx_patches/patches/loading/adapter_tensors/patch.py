"""mlx-lm: an adapter of another model loads silently, then does nothing or crashes.

Why: An adapter's tensors are not compared with the model's. Tensors with unknown names are dropped,
    and the model answers without the adapter. Tensors of the wrong shape are loaded, and the first
    prompt crashes.
How: Names and shapes are compared before the tensors are loaded. If any do not fit, a ValueError
    lists them, as in later releases.
Upstream: mlx-lm 0.32.0 (#1727, commit d53e70f7).
Retire when: No supported release is older than mlx-lm 0.32.
"""

import json
from pathlib import Path
from typing import Any

from ....core.handed import hand_over
from ....core.verbs import Function, Patch, mx, refusal, wrap
from ..._shared.parts import Overlay

_LEAVES = {"lora_a", "lora_b", "m"}


def load_checked(load: Function, model: Any, adapter_path: Any) -> Any:
    """The model with a folder's adapter; ValueError if a tensor does not fit it."""

    def load_weights(weights: Function, file: Any, *args: Any, **kwargs: Any) -> Any:
        # Later releases check the tensors, and pass them here instead of a file name.
        errors = find_misfits(model, file, Path(adapter_path)) if isinstance(file, str) else []
        if errors:
            message = f"the adapter in {adapter_path} does not fit this model:"
            raise refusal(ValueError("\n  ".join([message, *errors])))
        return weights(file, *args, **kwargs)

    checked = hand_over("adapter-tensors", load_weights, model.load_weights)
    load(Overlay(model, load_weights=checked), adapter_path)
    return model


def find_misfits(model: Any, file: str, folder: Path) -> list[str]:
    """The tensors of an adapter's file that do not fit the model with its layers, one line each."""
    from mlx.utils import tree_flatten

    config = json.loads((folder / "adapter_config.json").read_text())
    whole = config.get("fine_tune_type") == "full"
    shapes = {
        name: tuple(value.shape)
        for name, value in tree_flatten(model.parameters())
        if whole or name.rpartition(".")[2] in _LEAVES
    }
    errors = []
    for name, tensor in mx.load(file).items():
        if name not in shapes:
            errors.append(f"{name}: the model has no such tensor")
        elif shapes[name] != tuple(tensor.shape):
            shape = tuple(tensor.shape)
            errors.append(f"{name}: has shape {shape}, but {shapes[name]} in the model")
    return errors


PATCH = Patch(
    id="adapter-tensors",
    targets=wrap("mlx_lm.tuner.utils:load_adapters", load_checked),
)
