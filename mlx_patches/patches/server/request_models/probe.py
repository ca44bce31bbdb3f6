"""Passes a folder that is not allowed wherever a request may name a model."""

import io
import json
import os
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....probes.kit import NotApplicable, Result, Target, module_of, without_variable
from .patch import MODELS

_TYPE = "a_type_that_no_release_has"
# Words in the errors of a release that has read the folder.
_READ = (_TYPE, "does not support task")


def probe(target: Target) -> Result:
    """Red if the folder is read, listed or accepted."""
    module = module_of(target)
    owner, _, attribute = target.name.rpartition(".")
    scope: Any = getattr(module, owner, None) if owner else module
    if attribute == "prompt_expansion_model":
        if attribute not in getattr(scope, "model_fields", ()):
            return Result(False, "this release's request has no such field")
    elif getattr(getattr(scope, attribute, None), "__module__", "") != target.module:
        raise NotApplicable("this release's server has no such function there")
    with without_variable(MODELS), tempfile.TemporaryDirectory() as folder:
        config = {"model_type": _TYPE, "_class_name": _TYPE}
        Path(folder, "config.json").write_text(json.dumps(config))
        # A weights file without weights.
        Path(folder, "model.safetensors").write_bytes(b"\2" + bytes(7) + b"{}")
        with redirect_stdout(io.StringIO()):  # releases print what they load
            return _call(module, scope, attribute, folder)


def _call(module: Any, scope: Any, attribute: str, folder: str) -> Result:
    try:
        if attribute == "prompt_expansion_model":
            fields = {"prompt": "a", "image": "a", "model": "a", attribute: folder}
            seen = getattr(scope(**fields), attribute)
        elif attribute == "apply_changes":
            named = dict.fromkeys(("draft_model", "apc_disk_path"), folder)
            seen, _ = scope.from_env().apply_changes(named)
        elif attribute == "discover_models":
            seen = scope.discover_models(SimpleNamespace(repos=[]), [folder])
        elif attribute == "load":
            seen = _make_provider(scope).load(folder, None, None)
        else:
            seen = getattr(scope, attribute)(folder)
    except Exception as error:
        text = f"{error} {getattr(error, 'detail', '')}"
        return Result(
            any(one in text for one in _READ), text.replace(folder, "a folder").strip()[:200]
        )
    red = folder in str(seen).replace(os.path.realpath(folder), folder)
    return Result(red, f"returns {seen}".replace(folder, "a folder")[:200])


def _make_provider(kind: Any) -> Any:
    """The model provider of a server that was started without a model."""
    options = dict.fromkeys(("model", "adapter_path", "draft_model", "chat_template"))
    options |= dict.fromkeys(("trust_remote_code", "use_default_chat_template", "pipeline"), False)
    return kind(SimpleNamespace(**options))
