"""Loading a model runs Python code from its folder without consent.

Why
    ``config.json`` may name a ``model_file``, a Python file in the model's folder that is run to
    build the model. Loading a downloaded model runs that code, even with
    ``trust_remote_code=False`` (CVE-2026-5843).
How
    The file is run only with consent: the caller passes ``trust_remote_code`` (in mlx-lm in
    ``tokenizer_config``, which the flag ``--trust-remote-code`` of its programs sets; in mlx-vlm as
    an argument), or sets ``MLX_PATCHES_TRUST_REMOTE_CODE=1``. Consent that ``mlx_lm.lora`` and
    ``mlx_lm.benchmark`` pass without asking their users does not count. Without consent, loading
    raises a ValueError that names the file. Optional: a program that ran before may stop.
Upstream
    mlx-lm 0.32.0 requires consent (GHSA-9m9w-53g9-47c4, mlx-lm 1385). Not fixed in mlx-vlm
    0.7.10.
Retire when
    No supported release runs a model's file without consent.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...core.errors import refusal
from ...core.patch import Patch, Target, around

logger = logging.getLogger("mlx_patches")

CONSENT = "MLX_PATCHES_TRUST_REMOTE_CODE"
_YES = frozenset({"1", "true", "yes", "on"})
# The number of characters of a file's name that a message shows.
_SHOWN = 120

# Whether the caller of the current load consented, in this thread.
_trusted: ContextVar[bool] = ContextVar("mlx_patches_trusted", default=False)
# Whether a caller's consent counts: some programs of mlx-lm pass True for every user.
_callers_count: ContextVar[bool] = ContextVar("mlx_patches_callers_count", default=True)


def lm_load(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """mlx-lm's ``load`` and ``sharded_load``: their ``tokenizer_config`` may contain consent."""
    config = kwargs.get("tokenizer_config")
    if config is None and len(args) > 1:  # in ``sharded_load``, a group, which is no mapping
        config = args[1]
    consent = isinstance(config, Mapping) and bool(config.get("trust_remote_code"))
    # A draft model is loaded without the argument: the server's own flag counts for it.
    with _told(consent or _trusted.get()):
        return load(*args, **kwargs)


def lm_load_model(
    load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """mlx-lm's ``load_model``, which runs the file."""
    if not has_consent():
        # The config is read with the release's function: an error here would occur there too.
        module = inspect.unwrap(load).__globals__
        try:
            config = dict(module["load_config"](model_path))
        except Exception as error:
            raise refusal(error) from None
        config.update(_given(load, (model_path, *args), kwargs).get("model_config") or {})
        if config.get("model_file") is not None:
            refuse(model_path, config["model_file"], "tokenizer_config={'trust_remote_code': True}")
    loaded: tuple[Any, Any] = load(model_path, *args, **kwargs)
    return loaded


def provider_load(load: Callable[..., Any], provider: Any, *args: Any, **kwargs: Any) -> Any:
    """mlx-lm's server: its flag is consent for every model that it loads, also a draft model."""
    with _told(bool(getattr(provider.cli_args, "trust_remote_code", False))):
        return load(provider, *args, **kwargs)


def own_program(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A program of mlx-lm that trusts every model without its user's consent."""
    token = _callers_count.set(False)
    try:
        return run(*args, **kwargs)
    finally:
        _callers_count.reset(token)


def vlm_load_model(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's ``load_model``: its argument may be consent."""
    with _told(bool(kwargs.get("trust_remote_code"))):
        return load(*args, **kwargs)


def vlm_find_module(
    find: Callable[..., Any], config: Any, model_path: Any = None, **kwargs: Any
) -> Any:
    """mlx-vlm's ``get_model_and_args``, which runs the file."""
    if model_path is None:  # a call, or a release, without a model's file
        return find(config, **kwargs)
    if config.get("model_file") and not has_consent():
        refuse(model_path, config["model_file"], "trust_remote_code=True")
    return find(config, model_path, **kwargs)


def has_consent() -> bool:
    """Whether the current load may run code from the model's folder."""
    if os.environ.get(CONSENT, "").lower() in _YES:
        return True
    return _trusted.get() and _callers_count.get()


def refuse(model_path: Any, file: Any, argument: str) -> None:
    """Raise an error that names the file and how to consent.

    Raises:
        ValueError: always.
    """
    file = repr(str(file)[:_SHOWN])  # untrusted text
    logger.warning("mlx_patches: %s of the model %s was not run", file, model_path)
    raise refusal(
        ValueError(
            f"The model at {model_path} asks for its own Python file {file} to be run. Read it,"
            f" and if you trust it, load the model with {argument}, start the program with"
            f" --trust-remote-code, or set {CONSENT}=1."
        )
    )


def _given(load: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """A call's arguments by name; empty for a call that the release's signature rejects."""
    try:
        return dict(inspect.signature(inspect.unwrap(load)).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}


@contextmanager
def _told(consent: bool) -> Iterator[None]:
    """In this context, loads of this thread have this consent."""
    token = _trusted.set(consent)
    try:
        yield
    finally:
        _trusted.reset(token)


def _supporting(module: str, name: str, wrapper: Callable[..., Any]) -> Target:
    return Target("mlx-lm", module, name, around(wrapper), supports=True)


MODEL_CODE = Patch(
    id="model-code-consent",
    summary="loading a model with mlx-lm runs Python code from its folder without consent",
    targets=(
        Target("mlx-lm", "mlx_lm.utils", "load_model", around(lm_load_model)),
        _supporting("mlx_lm.utils", "load", lm_load),
        _supporting("mlx_lm.utils", "sharded_load", lm_load),
        _supporting("mlx_lm.server", "ModelProvider.load", provider_load),
        _supporting("mlx_lm.lora", "run", own_program),
        _supporting("mlx_lm.benchmark", "main", own_program),
    ),
    probe="mlx_patches.probes.model_code:probe",
    module=__name__,
    optional=True,
    security=True,
)

VLM_MODEL_CODE = Patch(
    id="vlm-model-code-consent",
    summary="loading a model with mlx-vlm runs Python code from its folder without consent",
    targets=(
        Target("mlx-vlm", "mlx_vlm.utils", "get_model_and_args", around(vlm_find_module)),
        Target("mlx-vlm", "mlx_vlm.utils", "load_model", around(vlm_load_model), supports=True),
    ),
    probe="mlx_patches.probes.model_code:probe",
    module=__name__,
    optional=True,
    security=True,
)
