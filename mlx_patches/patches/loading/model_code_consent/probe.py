"""Loads a model's folder that names its own Python file, without the user's consent.

``config.json`` names it for mlx-lm and mlx-vlm, ``tokenizer_config.json`` for transformers.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from ....probes.kit import (
    Result,
    Target,
    import_module,
    mx,
    require,
    require_names,
    without_variable,
)
from .patch import CONSENT

_FILE = "own_code.py"
# The file leaves a mark when it runs, and stops the load there.
_CODE = "import pathlib\npathlib.Path({mark!r}).touch()\nraise KeyboardInterrupt\n"
# A call as code of mlx-vlm makes it, which consents in its user's place.
_CALL = "lambda load, folder: load(folder, trust_remote_code=True)"


def probe(target: Target) -> Result:
    """Red if the file runs."""
    require(target)
    if target.supports or target.distribution == "transformers":
        load: Callable[[Path], Any] = _load_tokenizer
    else:
        utils = import_module(f"{target.module.partition('.')[0]}.utils")
        require_names(utils, "load_model")
        load = utils.load_model
    # transformers has its own class for one of the two models.
    known = target.name == "resolve_trust_remote_code"
    with without_variable(CONSENT), tempfile.TemporaryDirectory() as folder:
        mark = write_folder(Path(folder), model_type="gpt2" if known else "mlx_patches_none")
        message = ""
        try:
            load(Path(folder))
        except (Exception, KeyboardInterrupt) as error:
            message = f"{type(error).__name__}: {error}"
        if mark.exists():
            return Result(True, f"loading ran {_FILE} of the model's folder")
    more = ", and the error names it" if _FILE in message else ""
    return Result(False, f"{_FILE} was not run{more}")


def _load_tokenizer(folder: Path) -> Any:
    """Load a folder's tokenizer as a release does, with the copies of its code in the folder."""
    from transformers import AutoTokenizer, dynamic_module_utils

    with (
        mock.patch.object(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules")),
        mock.patch.object(sys, "path", [*sys.path]),
    ):
        return eval(_CALL, {"__name__": "mlx_vlm.probe"})(AutoTokenizer.from_pretrained, folder)


def write_folder(folder: Path, code: str = _CODE, model_type: str = "mlx_patches_none") -> Path:
    """Write a folder that names ``code`` in both ways; returns the path that it creates."""
    mark = folder / "was-run"
    name = _FILE.removesuffix(".py")
    (folder / _FILE).write_text(code.format(mark=str(mark)))
    config = {"model_type": model_type, "model_file": _FILE}
    (folder / "config.json").write_text(json.dumps(config))
    own = "GPT2TokenizerFast" if model_type == "gpt2" else "OwnTokenizer"
    tokenizer = {"tokenizer_class": own, "auto_map": {"AutoTokenizer": [None, f"{name}.Own"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    mx.save_safetensors(str(folder / "model.safetensors"), {"weight": mx.zeros((1,))})
    return mark
