"""Loads a user's model, with its weights, from a local folder."""

import inspect
from pathlib import Path
from typing import Any

from ..core.model_files import CONSENT, has_consent, read_config
from . import Family, LabModel, NotBuilt, Tolerance, engine
from .build import lab_model

# By dtype of the weights: how much the same kernels differ between batch shapes, plus an allowance
# for depth. A wrong position or another row's state differs by orders of magnitude more.
TOLERANCES = {
    "float32": Tolerance(logits=1e-3, margin=1e-3, nats=1e-4),
    "float16": Tolerance(logits=2e-2, margin=2e-2, nats=1e-2),
    "bfloat16": Tolerance(logits=8e-2, margin=8e-2, nats=5e-2),
}


def load(family: Family, folder: Path) -> LabModel:
    """Load a folder's language model, offline; its own code runs only with consent."""
    try:
        config = read_config(folder)
        if config.get("model_file") and not has_consent():
            raise NotBuilt(f"config.json names a model_file: set {CONSENT}=1 to run this code")
        load_model = family.part("utils").load_model
        takes_consent = "trust_remote_code" in inspect.signature(load_model).parameters
        consent = {"trust_remote_code": True} if takes_consent and has_consent() else {}
        loaded = load_model(folder, **consent)
        whole = loaded[0] if isinstance(loaded, tuple) else loaded
        model = whole.language_model if family.distribution == "mlx-vlm" else whole
        dtype = dtype_of(model)
        return lab_model(family, model, config, TOLERANCES[dtype], dtype)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(engine.where(error)) from error


def dtype_of(model: Any) -> str:
    """The least precise floating dtype of the parameters; quantized layers have float scales."""
    from mlx.utils import tree_flatten

    found = {str(value.dtype).rpartition(".")[2] for _, value in tree_flatten(model.parameters())}
    return next((name for name in ("bfloat16", "float16") if name in found), "float32")
