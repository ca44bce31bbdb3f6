"""A request can make a server load any folder, and download any model.

Why
    ``mlx_lm.server`` and ``mlx_vlm.server`` load the model, the draft model and the adapters that
    a request names, from any folder that the server can read, or from the Hub, which fills the
    disk. ``mlx_vlm.server`` also lists the models of any folder, and takes the folder of its disk
    cache from a request.
How
    A request may name what the server was started with, models of the local Hub cache, and what
    ``MLX_PATCHES_REQUEST_MODELS`` lists: names and folders, separated as in ``PATH``. Everything
    else is refused before it is opened, with a line in the log. Optional: requests that were
    answered before may be refused.
Upstream
    Not fixed in mlx-lm 0.32.2 and mlx-vlm 0.7.10.
Retire when
    The servers have an option to serve only listed models.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from ....core.patch import Attribute, Patch, Target, around, stored
from ..._shared.callers import callers
from ..._shared.refusals import Refused, as_refusal

MODELS = "MLX_PATCHES_REQUEST_MODELS"
ID = "host-request-models"
_REPO = re.compile(r"[A-Za-z0-9_][\w.-]*(?:/[A-Za-z0-9_][\w.-]*)?", re.ASCII)

# What mlx_vlm.server loaded as it started.
_started: set[str] = set()


def is_allowed(name: Any, started: Iterable[str | None] = ()) -> bool:
    """Whether a request may name this of a server that was started with these names."""
    given = [one for one in started if one]
    listed = [one for one in os.environ.get(MODELS, "").split(os.pathsep) if one.strip()]
    if not isinstance(name, str):
        return False
    if name in given or name in listed:
        return True
    if not os.path.exists(name):  # the releases take an existing folder before a name of the Hub
        return is_cached(name)
    real = Path(os.path.realpath(name))
    return real in map(_real, given) or any(real.is_relative_to(_real(one)) for one in listed)


def is_cached(name: str) -> bool:
    """Whether a name is of a model in the local Hub cache."""
    if not _REPO.fullmatch(name) or ".." in name or "--" in name:
        return False
    hub: Any = importlib.import_module("huggingface_hub.constants")
    folder = f"models--{name.replace('/', '--')}"
    return os.path.isdir(os.path.join(hub.HF_HUB_CACHE, folder, "snapshots"))


def _real(path: str) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))


def check(name: Any, started: Iterable[str | None] = ()) -> None:
    """Refuse a name that a request may not use, or that cannot be checked."""
    private = ""
    try:
        if is_allowed(name, started):
            return
    except Exception as error:
        private = f"{type(error).__name__}: {error}"
    reason = f"the server was not started with it, and {MODELS} does not list it"
    raise as_refusal(ID, name, Refused(reason, private))


def lm_load(
    load: Callable[..., Any],
    provider: Any,
    model_path: Any,
    adapter_path: Any = None,
    draft_model_path: Any = None,
) -> Any:
    """mlx-lm's server: load what a request names, if it may."""
    options = provider.cli_args
    started = ("default_model", options.model, options.adapter_path, options.draft_model)
    for name in (model_path, adapter_path, draft_model_path):
        if name is not None:
            check(name, started)
    return load(provider, model_path, adapter_path, draft_model_path)


def vlm_load(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: load what a request names, if it may."""
    adapter = kwargs.get("adapter_path", args[0] if args else None)
    names = [model_path]
    if isinstance(adapter, str):  # else None, or the mark for the adapter of the loaded model
        names.append(adapter)
    if is_starting():
        _started.update(names)
    for name in names:
        check(name, _started)
    return load(model_path, *args, **kwargs)


def is_starting() -> bool:
    """Whether mlx_vlm.server loads a model as it starts, and not for a request."""
    return any(
        function == "lifespan" and module.startswith("mlx_vlm.server")
        for module, function in callers()
    )


def set_options(apply: Callable[..., Any], config: Any, payload: Any, *args: Any, **kw: Any) -> Any:
    """mlx-vlm's server: change settings, if a request may name their folders."""
    if isinstance(payload, dict):
        for option, variable in (
            ("draft_model", "MLX_VLM_DRAFT_MODEL"),
            ("apc_disk_path", "APC_DISK_PATH"),
        ):
            if payload.get(option):
                check(payload[option], [os.environ.get(variable)])
    return apply(config, payload, *args, **kw)


def listed_models(discover: Callable[..., Any], cache_info: Any, paths: Iterable[str] = ()) -> Any:
    """mlx-vlm's server: list the models of folders that a request may name."""
    paths = list(paths)
    started = os.environ.get("MLX_VLM_MODEL_PATHS", "").split(os.pathsep)
    for path in paths:
        check(path, started)
    return discover(cache_info, paths)


def image_defaults(resolve: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's server: the defaults of an image model that a request may name."""
    check(model, _started)
    return resolve(model, *args, **kwargs)


def expanding_model(request: Any) -> Any:
    """mlx-vlm's server: the model that expands the prompt of an image, if a request may name it."""
    name = stored(request, _EXPANDING)
    if name is not None:
        check(name, _started)
    return name


_EXPANDING = "prompt_expansion_model"
_VLM = partial(Target, "mlx-vlm")

PATCH = Patch(
    id=ID,
    formerly="request-models",
    severity="security",
    summary=(
        "mlx_lm.server and mlx_vlm.server: a request can load any folder and download any model"
    ),
    targets=(
        Target("mlx-lm", "mlx_lm.server", "ModelProvider.load", around(lm_load)),
        _VLM("mlx_vlm.server", "get_cached_model", around(vlm_load)),
        _VLM("mlx_vlm.server.app", "get_cached_model", around(vlm_load)),
        _VLM("mlx_vlm.server.runtime_config", "RuntimeConfig.apply_changes", around(set_options)),
        _VLM("mlx_vlm.server.model_discovery", "discover_models", around(listed_models)),
        _VLM("mlx_vlm.generate.image_defaults", "resolve_image_defaults", around(image_defaults)),
        *(
            _VLM(
                "mlx_vlm.server.schemas",
                f"{name}.{_EXPANDING}",
                lambda original: Attribute(_EXPANDING, expanding_model),
                fingerprint_of=(name,),
                defines_new_attribute=True,
            )
            for name in ("ImageGenerationRequest", "ImageEditRequest")
        ),
    ),
    optional=True,
    security=True,
    profiles=("security",),
)
