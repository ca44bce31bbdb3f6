"""Loads a model's folder whose ``config.json`` names a Python file; the user has not agreed."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
from pathlib import Path

from ..core.patch import Target
from . import NotApplicable, Result

_FILE = "own_code.py"
# The file leaves a mark when it runs, and stops the load there.
_CODE = "import pathlib\npathlib.Path({mark!r}).touch()\nraise KeyboardInterrupt\n"


def probe(target: Target) -> Result:
    """Red where the file is run."""
    utils = importlib.import_module(f"{target.module.partition('.')[0]}.utils")
    if not hasattr(utils, "load_model"):
        raise NotApplicable("this release has no load_model")
    consent = os.environ.pop("MLX_PATCHES_TRUST_REMOTE_CODE", None)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _load(utils.load_model, Path(folder))
    finally:
        if consent is not None:
            os.environ["MLX_PATCHES_TRUST_REMOTE_CODE"] = consent


def _load(load_model: object, folder: Path) -> Result:
    mark = write_folder(folder)
    said = ""
    try:
        load_model(folder)  # type: ignore[operator]
    except (Exception, KeyboardInterrupt) as error:
        said = f"{type(error).__name__}: {error}"
    if mark.exists():
        return Result(True, f"loading ran {_FILE} of the model's folder")
    if _FILE in said:
        return Result(False, f"{_FILE} was not run, and the error says so")
    return Result(False, f"{_FILE} was not run")


def write_folder(folder: Path, code: str = _CODE) -> Path:
    """Write a folder whose config names ``code``; returns the path that the code creates."""
    import mlx.core as mx

    mark = folder / "was-run"
    (folder / _FILE).write_text(code.format(mark=str(mark)))
    config = {"model_type": "mlx_patches_none", "model_file": _FILE}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), {"weight": mx.zeros((1,))})
    return mark
