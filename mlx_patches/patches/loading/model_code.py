"""A model's folder runs Python code of its own while it is loaded, and nobody is asked.

Why
    ``config.json`` may name a ``model_file``, a Python file of the model's folder that is run to
    build the model. Whoever loads a model that he downloaded runs that code, also with
    ``trust_remote_code=False`` (CVE-2026-5843).
How
    The file is run with consent only: where the caller passed ``trust_remote_code`` (in mlx-lm in
    ``tokenizer_config``, which the flag ``--trust-remote-code`` of its programs sets; in mlx-vlm as
    an argument), or with ``MLX_PATCHES_TRUST_REMOTE_CODE=1``. Consent that ``mlx_lm.lora`` and
    ``mlx_lm.benchmark`` give for their users does not count. Else loading raises a ValueError
    that names the file. Optional: a program that ran before may stop.
Upstream
    mlx-lm 0.32.0 asks (GHSA-9m9w-53g9-47c4, mlx-lm 1385). Not fixed in mlx-vlm 0.7.10.
Retire when
    No supported release runs a model's file unasked.
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
# How much of a file's name is shown.
_SHOWN = 120

# What the load that is under way was told, in this thread.
_trusted: ContextVar[bool] = ContextVar("mlx_patches_trusted", default=False)
# Whether a caller's word counts: mlx-lm's own programs pass True for everybody.
_callers_count: ContextVar[bool] = ContextVar("mlx_patches_callers_count", default=True)


def lm_load(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """mlx-lm's ``load`` and ``sharded_load``: their ``tokenizer_config`` may give consent."""
    config = kwargs.get("tokenizer_config")
    if config is None and len(args) > 1:  # the group of a sharded load is no mapping
        config = args[1]
    consent = isinstance(config, Mapping) and bool(config.get("trust_remote_code"))
    # A draft model's load says nothing of its own: what the server was told counts for it.
    with _told(consent or _trusted.get()):
        return load(*args, **kwargs)


def lm_load_model(
    load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    """mlx-lm's ``load_model``, which runs the file."""
    if not has_consent():
        # Read as the release reads it; what fails here fails there, so nothing is let through.
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
    """mlx-lm's server: its flag is consent for whatever it loads, a draft model too."""
    with _told(bool(getattr(provider.cli_args, "trust_remote_code", False))):
        return load(provider, *args, **kwargs)


def own_program(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A program of mlx-lm that trusts every model: the user was not asked."""
    token = _callers_count.set(False)
    try:
        return run(*args, **kwargs)
    finally:
        _callers_count.reset(token)


def vlm_load_model(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """mlx-vlm's ``load_model``: notes what it was told."""
    with _told(bool(kwargs.get("trust_remote_code"))):
        return load(*args, **kwargs)


def vlm_find_module(
    find: Callable[..., Any], config: Any, model_path: Any = None, **kwargs: Any
) -> Any:
    """mlx-vlm's ``get_model_and_args``, which runs the file."""
    if model_path is None:  # nor do releases that know no file of a model's
        return find(config, **kwargs)
    if config.get("model_file") and not has_consent():
        refuse(model_path, config["model_file"], "trust_remote_code=True")
    return find(config, model_path, **kwargs)


def has_consent() -> bool:
    """Whether the load that is under way may run code of the model's folder."""
    if os.environ.get(CONSENT, "").lower() in _YES:
        return True
    return _trusted.get() and _callers_count.get()


def refuse(model_path: Any, file: Any, argument: str) -> None:
    """Say which file is not run, and how to consent.

    Raises:
        ValueError: always.
    """
    file = repr(str(file)[:_SHOWN])  # whoever wrote the folder chose it
    logger.warning("mlx_patches: %s of the model %s was not run", file, model_path)
    raise refusal(
        ValueError(
            f"The model at {model_path} asks for its own Python file {file} to be run. Read it,"
            f" and if you trust it, load the model with {argument}, start the program with"
            f" --trust-remote-code, or set {CONSENT}=1."
        )
    )


def _given(load: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """A call's arguments by name; those of a call that the release refuses are none."""
    try:
        return dict(inspect.signature(inspect.unwrap(load)).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}


@contextmanager
def _told(consent: bool) -> Iterator[None]:
    """Within, loads of this thread know what the caller said."""
    token = _trusted.set(consent)
    try:
        yield
    finally:
        _trusted.reset(token)


def _supporting(module: str, name: str, wrapper: Callable[..., Any]) -> Target:
    return Target("mlx-lm", module, name, around(wrapper), supports=True)


MODEL_CODE = Patch(
    id="model-code-consent",
    summary="a model's folder runs its own Python code while mlx-lm loads it, unasked",
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
)

VLM_MODEL_CODE = Patch(
    id="vlm-model-code-consent",
    summary="a model's folder runs its own Python code while mlx-vlm loads it, unasked",
    targets=(
        Target("mlx-vlm", "mlx_vlm.utils", "get_model_and_args", around(vlm_find_module)),
        Target("mlx-vlm", "mlx_vlm.utils", "load_model", around(vlm_load_model), supports=True),
    ),
    probe="mlx_patches.probes.model_code:probe",
    module=__name__,
    optional=True,
)
