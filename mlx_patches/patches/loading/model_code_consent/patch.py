"""Loading a model runs Python code from its folder without consent.

Why
    A model's folder has two doors for its own Python code. ``config.json`` may name a
    ``model_file``, which mlx-lm and mlx-vlm run to build the model, even with
    ``trust_remote_code=False`` (CVE-2026-5843). And an ``auto_map`` may name classes of a config,
    tokenizer, processor, image or video processor, feature extractor or generation, which
    transformers imports from the folder. It asks for consent, but most processors of mlx-vlm, its
    ``convert`` and some programs of mlx-lm say ``trust_remote_code=True`` without asking anybody.
How
    Both doors ask whether the user agreed: the caller passes ``trust_remote_code`` to a loader (in
    mlx-lm also in ``tokenizer_config``), the program was started with ``--trust-remote-code``, or
    ``MLX_PATCHES_TRUST_REMOTE_CODE=1`` is set, or the same setting of mlx-vlm's server or
    Rapid-MLX. What a release or a host passes by itself is no consent: its code is on the stack of
    the call. A caller who uses transformers directly is asked by transformers alone, but for
    ``AutoProcessor.from_pretrained`` once mlx-vlm has replaced it. Without consent, transformers'
    own class is used where it has one; else loading raises a ValueError that names the file. The
    doors of transformers are closed in every release of it, since this depends on the names of
    three functions and not on their code. Optional: a program that ran before may stop.
Upstream
    mlx-lm 0.32.0 requires consent for a ``model_file`` (GHSA-9m9w-53g9-47c4, mlx-lm 1385). Not
    fixed in mlx-vlm 0.7.10, nor for an ``auto_map`` in either.
Retire when
    No supported release runs a model's code without consent.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ....core.errors import is_refusal, refusal
from ....core.patch import Patch, Target, around
from ..._shared.callers import RELEASES, callers
from ..._shared.targets import at

logger = logging.getLogger("mlx_patches")

CONSENT = "MLX_PATCHES_TRUST_REMOTE_CODE"
# The settings of mlx-vlm's server and of Rapid-MLX say the same.
_SETTINGS = (CONSENT, "MLX_TRUST_REMOTE_CODE", "RAPID_MLX_TRUST_REMOTE_CODE")
_YES = frozenset({"1", "true", "yes", "on"})
_FLAG = "--trust-remote-code"
# The parameters of loaders that may contain consent, besides ``trust_remote_code``.
_CONFIGS = ("tokenizer_config", "tokenizer_config_extra", "processor_config")
# The number of characters of a name that a message shows.
_SHOWN = 120

# Whether the caller of the current load consented, and what was refused in it, in this thread.
_agreed: ContextVar[bool] = ContextVar("mlx_patches_agreed", default=False)
_refused: ContextVar[tuple[Exception, ...]] = ContextVar("mlx_patches_refused", default=())


# -- who agreed ------------------------------------------------------------------------------------


def has_consent() -> bool:
    """Whether the user agreed that code from the folder of the current load is run."""
    if _agreed.get() or any(os.environ.get(name, "").lower() in _YES for name in _SETTINGS):
        return True
    # argparse accepts the beginning of a flag.
    return any(word.startswith("--trust") and _FLAG.startswith(word) for word in sys.argv[1:])


def is_called_by_release() -> bool:
    """Whether code of a release or a host is on the stack of this thread."""
    return any(module.partition(".")[0] in RELEASES for module, _ in callers())


def hear_caller(load: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A loader: its arguments are consent, unless a release passes them.

    mlx-vlm and transformers catch what a class raises and try another one. If none loads, the
    caller gets the refusal.
    """
    token = _refused.set(())
    try:
        with _agreeing(_says_yes(load, args, kwargs) and not is_called_by_release()):
            return load(*args, **kwargs)
    except Exception as error:
        if _refused.get() and not is_refusal(error):
            raise _refused.get()[0] from error
        raise
    finally:
        _refused.reset(token)


def hear_user(run: Callable[..., Any], program: Any, *args: Any, **kwargs: Any) -> Any:
    """A program of mlx-lm: the options that its user passed are consent."""
    options = getattr(program, "cli_args", program)
    with _agreeing(bool(getattr(options, "trust_remote_code", False))):
        return run(program, *args, **kwargs)


@contextmanager
def _agreeing(agreed: bool) -> Iterator[None]:
    """In this context, loads of this thread have consent, if they had it before or get it now."""
    token = _agreed.set(agreed or _agreed.get())
    try:
        yield
    finally:
        _agreed.reset(token)


def _says_yes(load: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> bool:
    given = _given(load, args, kwargs)
    given |= given.pop("kwargs", {})
    words = [given, *(given.get(name) for name in _CONFIGS)]
    return any(isinstance(one, Mapping) and bool(one.get("trust_remote_code")) for one in words)


def _given(load: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """A call's arguments by name; empty for a call that the release's signature rejects."""
    try:
        return dict(inspect.signature(inspect.unwrap(load)).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}


# -- the file that builds the model ----------------------------------------------------------------


def lm_load_model(load: Callable[..., Any], model_path: Any, *args: Any, **kwargs: Any) -> Any:
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
            refuse(model_path, config["model_file"])
    return load(model_path, *args, **kwargs)


def vlm_find_module(
    find: Callable[..., Any], config: Any, model_path: Any = None, **kwargs: Any
) -> Any:
    """mlx-vlm's ``get_model_and_args``, which runs the file."""
    if model_path is None:  # a call, or a release, without a model's file
        return find(config, **kwargs)
    if config.get("model_file") and not has_consent():
        refuse(model_path, config["model_file"])
    return find(config, model_path, **kwargs)


# -- the classes that transformers imports ---------------------------------------------------------


def prefer_own_class(
    resolve: Callable[..., Any],
    trust_remote_code: Any,
    model_name: Any,
    has_local_code: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """transformers' choice between its own class and the folder's."""
    if has_local_code and trust_remote_code and not _may_run():
        trust_remote_code = False
    return resolve(trust_remote_code, model_name, has_local_code, *args, **kwargs)


def fetch_code(
    fetch: Callable[..., Any],
    pretrained_model_name_or_path: Any,
    module_file: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Copies a file into the folder that transformers imports from, and imports what it needs."""
    if not _may_run():
        refuse(pretrained_model_name_or_path, module_file)
    return fetch(pretrained_model_name_or_path, module_file, *args, **kwargs)


def run_code(
    run: Callable[..., Any], class_name: Any, module_path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Runs a file of that folder."""
    if not _may_run():
        refuse(*os.path.split(module_path))
    return run(class_name, module_path, *args, **kwargs)


def _may_run() -> bool:
    return has_consent() or not is_called_by_release()


def refuse(model: Any, file: Any) -> None:
    """Raise an error that names the file and how to consent.

    Raises:
        ValueError: always.
    """
    # Both are untrusted text: an ``auto_map`` may name another model.
    file, model = repr(str(file)[:_SHOWN]), repr(str(model)[-_SHOWN:])
    logger.warning("mlx_patches: %s of the model %s was not run", file, model)
    error = refusal(
        ValueError(
            f"The model at {model} asks for its own Python file {file} to be run. Read it, and if"
            " you trust it, load the model with trust_remote_code=True (in mlx-lm with"
            " tokenizer_config={'trust_remote_code': True}), start the program with"
            f" {_FLAG}, or set {CONSENT}=1."
        )
    )
    _refused.set((*_refused.get(), error))
    raise error


def _listening(distribution: str, module: str, *names: str) -> tuple[Target, ...]:
    """Loaders whose callers may consent."""
    loaders = dict.fromkeys(names, around(hear_caller))
    return at([(distribution, module)], loaders, supports=True)


_DYNAMIC = "transformers.dynamic_module_utils"

PATCH = Patch(
    id="model-code-consent",
    formerly="vlm-model-code-consent",
    severity="security",
    summary="mlx-lm and mlx-vlm: loading a model runs Python code from its folder without consent",
    targets=(
        Target("mlx-lm", "mlx_lm.utils", "load_model", around(lm_load_model)),
        *_listening("mlx-lm", "mlx_lm.utils", "load", "sharded_load", "load_tokenizer"),
        *_listening("mlx-lm", "mlx_lm.tokenizer_utils", "load"),
        *_listening("mlx-lm", "mlx_lm.convert", "convert"),
        Target("mlx-lm", "mlx_lm.server", "ModelProvider.load", around(hear_user), supports=True),
        Target("mlx-lm", "mlx_lm.lora", "run", around(hear_user), supports=True),
        Target("mlx-vlm", "mlx_vlm.utils", "get_model_and_args", around(vlm_find_module)),
        *_listening("mlx-vlm", "mlx_vlm.utils", "load", "load_model", "load_processor"),
        *_listening("mlx-vlm", "mlx_vlm.convert", "convert"),
        Target("transformers", _DYNAMIC, "resolve_trust_remote_code", around(prefer_own_class)),
        Target("transformers", _DYNAMIC, "get_cached_module_file", around(fetch_code)),
        Target("transformers", _DYNAMIC, "get_class_in_module", around(run_code)),
    ),
    optional=True,
    security=True,
    profiles=("security", "safe"),
)
