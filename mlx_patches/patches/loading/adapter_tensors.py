"""An adapter of another model is loaded in silence, and does nothing or breaks the model.

Why
    Tensors of an adapter are not compared with the model's: those of unknown names are dropped,
    and the answers are those of the model without its adapter. Those of another shape are put in
    the model, and the first prompt fails.
How
    The names and shapes are compared before the tensors are loaded, and what does not fit is
    named in a ValueError, as later releases do.
Upstream
    mlx-lm 0.32.0 (#1727, commit d53e70f7).
Retire when
    No supported release is older than mlx-lm 0.32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.errors import refusal
from ...core.patch import Patch, Target, around
from ..parts import Shown

_LEAVES = {"lora_a", "lora_b", "m"}


def loaded(load: Callable[..., Any], model: Any, adapter_path: Any) -> Any:
    """The model with the adapter of a folder.

    Raises:
        ValueError: tensors of the adapter are none of the model's, or have other shapes.
    """

    def load_weights(file: Any, *args: Any, **kwargs: Any) -> Any:
        # Later releases check, and hand over what they have read.
        errors = misfits(model, file, Path(adapter_path)) if isinstance(file, str) else []
        if errors:
            message = f"the adapter in {adapter_path} is not one of this model:"
            raise refusal(ValueError("\n  ".join([message, *errors])))
        return model.load_weights(file, *args, **kwargs)

    load(Shown(model, load_weights=load_weights), adapter_path)
    return model


def misfits(model: Any, file: str, folder: Path) -> list[str]:
    """What does not fit, a line a tensor.

    Args:
        model: with the adapter's layers in it.
        file: the tensors.
        folder: where ``adapter_config.json`` is.
    """
    import mlx.core as mx
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
            errors.append(f"{name}: of shape {tuple(tensor.shape)} in place of {shapes[name]}")
    return errors


PATCH = Patch(
    id="adapter-tensors",
    summary="an adapter of another model is loaded in silence, and does nothing or breaks it",
    targets=(Target("mlx-lm", "mlx_lm.tuner.utils", "load_adapters", around(loaded)),),
    probe="mlx_patches.probes.adapter_tensors:probe",
    module=__name__,
)
