"""mlx_lm.server and mlx_vlm.server: a request can load any folder and download any model.

Why: ``mlx_lm.server`` and ``mlx_vlm.server`` load the model, the draft model and the adapter that a
    request names: from any folder that the server can read, or from the Hub, which fills the disk.
    ``mlx_vlm.server`` also lists the models of any folder, and accepts a folder for its disk cache.
How: A request may name what the server was started with, models of the local Hub cache, and what
    ``MLX_PATCHES_REQUEST_MODELS`` lists: names and folders, separated as in ``PATH``. Any other
    name is refused before it is opened, and logged. Optional: requests that were answered before
    may be refused.
Upstream: Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when: The servers have an option to serve only listed models.
"""

import importlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ....core.patch import Patch, Target, read_stored
from ....core.verbs import argument, before, convert
from ..._shared.callers import is_vlm_starting
from ..._shared.refusals import Refused, as_refusal
from ..._shared.targets import LIMIT, vlm_server

MODELS = "MLX_PATCHES_REQUEST_MODELS"
ID = "host-request-models"
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)

# What mlx_vlm.server loaded as it started.
_started: set[str] = set()


def is_allowed(name: Any, started: Iterable[str | None] = ()) -> bool:
    """Whether a request may use a name if the server was started with these names."""
    given = [one for one in started if one]
    listed = [one for one in os.environ.get(MODELS, "").split(os.pathsep) if one.strip()]
    if not isinstance(name, str):
        return False
    if name in given or name in listed:
        return True
    if not os.path.exists(name):  # releases prefer an existing folder to a name on the Hub
        return is_cached(name)
    real = Path(os.path.realpath(name))
    return real in map(_real, given) or any(real.is_relative_to(_real(one)) for one in listed)


def is_cached(name: str) -> bool:
    if not _REPO.fullmatch(name) or ".." in name or "--" in name:
        return False
    hub: Any = importlib.import_module("huggingface_hub.constants")
    folder = f"models--{name.replace('/', '--')}"
    return os.path.isdir(os.path.join(hub.HF_HUB_CACHE, folder, "snapshots"))


def _real(path: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))


def check_name(name: Any, started: Iterable[str | None] = ()) -> None:
    """Refuse a name that a request may not use, or if the check itself fails."""
    private = ""
    try:
        if is_allowed(name, started):
            return
    except Exception as error:
        private = f"{type(error).__name__}: {error}"
    reason = f"the server was not started with it, and {MODELS} does not list it"
    raise as_refusal(ID, name, Refused(reason, private))


def check_lm_load(
    provider: Any, /, model_path: Any, adapter_path: Any, draft_model_path: Any
) -> None:
    """mlx-lm's server: check what a request lets it load."""
    options = provider.cli_args
    started = ("default_model", options.model, options.adapter_path, options.draft_model)
    for name in (model_path, adapter_path, draft_model_path):
        if name is not None:
            check_name(name, started)


def check_vlm_load(model_path: Any, adapter_path: Any) -> None:
    """mlx-vlm's server: check what a request lets it load."""
    names = [model_path]
    if isinstance(adapter_path, str):  # else None, or the mark for the loaded model's adapter
        names.append(adapter_path)
    if is_vlm_starting():
        _started.update(names)
    for name in names:
        check_name(name, _started)


def check_options(payload: Any) -> None:
    """mlx-vlm's server: check the folders in the settings that a request changes."""
    if isinstance(payload, dict):
        for option, variable in (
            ("draft_model", "MLX_VLM_DRAFT_MODEL"),
            ("apc_disk_path", "APC_DISK_PATH"),
        ):
            if payload.get(option):
                check_name(payload[option], [os.environ.get(variable)])


def check_folders(paths: Iterable[str]) -> list[str]:
    """mlx-vlm's server: the folders whose models a request lists, each checked."""
    paths = list(paths)
    started = os.environ.get("MLX_VLM_MODEL_PATHS", "").split(os.pathsep)
    for path in paths:
        check_name(path, started)
    return paths


def check_image_model(model: Any) -> None:
    """mlx-vlm's server: check the image model whose defaults a request reads."""
    check_name(model, _started)


def read_expanding_model(request: Any) -> Any:
    """mlx-vlm's server: the model that expands an image's prompt, if a request may name it."""
    name = read_stored(request, _EXPANDING)
    if name is not None:
        check_name(name, _started)
    return name


def convert_expanding_model(kind: str) -> tuple[Target, ...]:
    place = f"mlx_vlm.server.schemas:{kind}.{_EXPANDING}"
    return convert(place, kind, read=read_expanding_model)


_EXPANDING = "prompt_expansion_model"

PATCH = Patch(
    id=ID,
    formerly="request-models",
    **LIMIT,
    targets=(
        *before("mlx_lm.server:ModelProvider.load", check_lm_load),
        *before(vlm_server("app", "get_cached_model"), check_vlm_load),
        *before("mlx_vlm.server.runtime_config:RuntimeConfig.apply_changes", check_options),
        *argument("mlx_vlm.server.model_discovery:discover_models", "paths", check_folders),
        *before("mlx_vlm.generate.image_defaults:resolve_image_defaults", check_image_model),
        *convert_expanding_model("ImageGenerationRequest"),
        *convert_expanding_model("ImageEditRequest"),
    ),
)
