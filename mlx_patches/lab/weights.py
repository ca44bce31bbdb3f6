"""Loads a user's model, with its weights, from a local folder."""

import inspect
from pathlib import Path
from typing import Any

from ..core.model_files import CONSENT, find_own_code, has_consent, read_config
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
        run_own_code(family, folder, config)
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


def run_own_code(family: Family, folder: Path, config: dict[str, Any]) -> None:
    """Run the code that ``auto_map`` names, as a server's start does; only with consent."""
    code = find_own_code(folder, config)
    if code and not has_consent():
        raise NotBuilt(f"this folder runs its own code ({code}): set {CONSENT}=1 to run it")
    if config.get("auto_map") or find_own_code(folder, {}):
        utils = family.part("utils")
        if family.distribution == "mlx-vlm":
            utils.load_processor(folder, trust_remote_code=True)
        else:
            utils.load_tokenizer(folder, {"trust_remote_code": True})


def dtype_of(model: Any) -> str:
    """The least precise floating dtype of the parameters; quantized layers have float scales."""
    from mlx.utils import tree_flatten

    found = {str(value.dtype).rpartition(".")[2] for _, value in tree_flatten(model.parameters())}
    return next((name for name in ("bfloat16", "float16") if name in found), "float32")
