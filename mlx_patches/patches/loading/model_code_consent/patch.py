"""mlx-lm and mlx-vlm: loading a model runs Python code from its folder without consent.

Why: A model's folder can run its own Python code in two ways. ``config.json`` may name a
    ``model_file``, which mlx-lm and mlx-vlm run to build the model, even with
    ``trust_remote_code=False`` (CVE-2026-5843). And an ``auto_map`` may name classes of a config,
    tokenizer, processor, image or video processor, feature extractor or generation, which
    transformers imports from the folder. transformers requires consent, but most processors of
    mlx-vlm, its ``convert`` and some programs of mlx-lm pass ``trust_remote_code=True`` although
    the user did not.
How: Both require the user's consent: the caller passes ``trust_remote_code`` to a loader (in mlx-lm
    also in ``tokenizer_config``), the program was started with ``--trust-remote-code``, or
    ``MLX_PATCHES_TRUST_REMOTE_CODE=1`` or the same setting of mlx-vlm's server or Rapid-MLX is set.
    An argument that a release or a host passes does not count: its code is on the stack of the
    call. Direct callers of transformers keep its own check, except for
    ``AutoProcessor.from_pretrained`` once mlx-vlm has replaced it. Without consent, transformers'
    own class is used if it has one; else loading raises a ValueError that names the file. The patch
    applies to every release of transformers, since it depends on the names of three functions and
    not on their code. Optional: a program that ran before may stop.
Upstream: mlx-lm 0.32.0 requires consent for a ``model_file`` (GHSA-9m9w-53g9-47c4, mlx-lm 1385).
    Not fixed in mlx-vlm 0.7.10, nor for an ``auto_map`` in either.
Retire when: No supported release runs a model's code without consent.
"""

import inspect
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ....core.errors import is_refusal, refusal
from ....core.verbs import Function, Patch, argument, before, wrap
from ..._shared.callers import RELEASES, callers
from ..._shared.targets import SAFE_LIMIT

logger = logging.getLogger("mlx_patches")

CONSENT = "MLX_PATCHES_TRUST_REMOTE_CODE"
# Settings of mlx-vlm's server and of Rapid-MLX with the same meaning.
_SETTINGS = (CONSENT, "MLX_TRUST_REMOTE_CODE", "RAPID_MLX_TRUST_REMOTE_CODE")
_YES = frozenset({"1", "true", "yes", "on"})
_FLAG = "--trust-remote-code"
# The parameters of loaders that may contain consent, besides ``trust_remote_code``.
_CONFIGS = ("tokenizer_config", "tokenizer_config_extra", "processor_config")
# The number of characters of a name that a message shows.
_SHOWN = 120

# Whether the caller of this thread's current load consented, and the refusals in it.
_consented: ContextVar[bool] = ContextVar("mlx_patches_consented", default=False)
_refused: ContextVar[tuple[Exception, ...]] = ContextVar("mlx_patches_refused", default=())


def has_consent() -> bool:
    """Whether the user consented to run code from the folder of the current load."""
    if _consented.get() or any(os.environ.get(name, "").lower() in _YES for name in _SETTINGS):
        return True
    # argparse accepts a flag's prefix.
    return any(word.startswith("--trust") and _FLAG.startswith(word) for word in sys.argv[1:])


def is_called_by_release() -> bool:
    """Whether code of a release or a host is on the stack of this thread."""
    return any(module.partition(".")[0] in RELEASES for module, _ in callers())


def accept_caller_consent(load: Function, *args: Any, **kwargs: Any) -> Any:
    """A loader: its arguments may be consent, unless a release passes them.

    mlx-vlm and transformers catch the error of a class and try another one. If none loads, the
    caller gets the refusal.
    """
    token = _refused.set(())
    try:
        with _with_consent(_passes_consent(load, args, kwargs) and not is_called_by_release()):
            return load(*args, **kwargs)
    except Exception as error:
        if _refused.get() and not is_refusal(error):
            raise _refused.get()[0] from error
        raise
    finally:
        _refused.reset(token)


def accept_user_consent(run: Function, program: Any, *args: Any, **kwargs: Any) -> Any:
    """A program of mlx-lm: its user's options may be consent."""
    options = getattr(program, "cli_args", program)
    with _with_consent(bool(getattr(options, "trust_remote_code", False))):
        return run(program, *args, **kwargs)


@contextmanager
def _with_consent(given: bool) -> Iterator[None]:
    """Give this thread's loads consent in this context, or keep the consent that they have."""
    token = _consented.set(given or _consented.get())
    try:
        yield
    finally:
        _consented.reset(token)


def _passes_consent(load: Function, args: tuple[Any, ...], kwargs: Any) -> bool:
    given = _bind_arguments(load, args, kwargs)
    given |= given.pop("kwargs", {})
    places = [given, *(given.get(name) for name in _CONFIGS)]
    return any(isinstance(one, Mapping) and bool(one.get("trust_remote_code")) for one in places)


def _bind_arguments(load: Function, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """A call's arguments by name; empty for a call that the release's signature rejects."""
    try:
        return dict(inspect.signature(inspect.unwrap(load)).bind(*args, **kwargs).arguments)
    except TypeError:
        return {}


def lm_load_model(load: Function, model_path: Any, *args: Any, **kwargs: Any) -> Any:
    """Refuse the file that mlx-lm's ``load_model`` would run."""
    if not has_consent():
        # The release's function reads the config: its errors are the release's.
        module = inspect.unwrap(load).__globals__
        try:
            config = dict(module["load_config"](model_path))
        except Exception as error:
            raise refusal(error) from None
        config.update(_bind_arguments(load, (model_path, *args), kwargs).get("model_config") or {})
        if config.get("model_file") is not None:
            refuse(model_path, config["model_file"])
    return load(model_path, *args, **kwargs)


def vlm_find_module(find: Function, config: Any, model_path: Any = None, **kwargs: Any) -> Any:
    """Refuse the file that mlx-vlm's ``get_model_and_args`` would run."""
    if model_path is None:  # a call, or a release, without a model file
        return find(config, **kwargs)
    if config.get("model_file") and not has_consent():
        refuse(model_path, config["model_file"])
    return find(config, model_path, **kwargs)


def prefer_own_class(trust_remote_code: Any, has_local_code: Any) -> Any:
    """Without consent, choose transformers' own class instead of the folder's."""
    if has_local_code and trust_remote_code and not _is_allowed():
        return False
    return trust_remote_code


def check_file(pretrained_model_name_or_path: Any, module_file: Any) -> None:
    """Refuse to copy a file and its imports into the folder that transformers imports from."""
    if not _is_allowed():
        refuse(pretrained_model_name_or_path, module_file)


def check_module(module_path: Any) -> None:
    if not _is_allowed():
        refuse(*os.path.split(module_path))


def _is_allowed() -> bool:
    return has_consent() or not is_called_by_release()


def refuse(model: Any, file: Any) -> None:
    # Both are untrusted text: an ``auto_map`` may name another model.
    file, model = repr(str(file)[:_SHOWN]), repr(str(model)[-_SHOWN:])
    logger.warning("mlx_patches: %s of the model %s was not run", file, model)
    error = refusal(
        ValueError(
            f"The model at {model} needs its own Python file {file}. Read it, and if"
            " you trust it, load the model with trust_remote_code=True (in mlx-lm with"
            " tokenizer_config={'trust_remote_code': True}), start the program with"
            f" {_FLAG}, or set {CONSENT}=1."
        )
    )
    _refused.set((*_refused.get(), error))
    raise error


_DYNAMIC = "transformers.dynamic_module_utils"
_LM_LOADERS = [
    *(f"mlx_lm.utils:{name}" for name in ("load", "sharded_load", "load_tokenizer")),
    "mlx_lm.tokenizer_utils:load",
    "mlx_lm.convert:convert",
]
_VLM_LOADERS = [
    *(f"mlx_vlm.utils:{name}" for name in ("load", "load_model", "load_processor")),
    "mlx_vlm.convert:convert",
]

PATCH = Patch(
    id="model-code-consent",
    formerly="vlm-model-code-consent",
    **SAFE_LIMIT,
    targets=(
        *wrap("mlx_lm.utils:load_model", lm_load_model),
        *wrap(_LM_LOADERS, accept_caller_consent, supports=True),
        *wrap("mlx_lm.server:ModelProvider.load", accept_user_consent, supports=True),
        *wrap("mlx_lm.lora:run", accept_user_consent, supports=True),
        *wrap("mlx_vlm.utils:get_model_and_args", vlm_find_module),
        *wrap(_VLM_LOADERS, accept_caller_consent, supports=True),
        *argument(f"{_DYNAMIC}:resolve_trust_remote_code", "trust_remote_code", prefer_own_class),
        *before(f"{_DYNAMIC}:get_cached_module_file", check_file),
        *before(f"{_DYNAMIC}:get_class_in_module", check_module),
    ),
)
