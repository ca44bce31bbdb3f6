"""Model types: the installed packages that implement one, and the model's folder."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.distributions import source_file
from ..core.errors import MlxPatchesError
from ..core.files import quote
from ..core.model_files import find_own_code, read_config, stop_ids
from ..core.model_types import implementations as implementations
from ..core.model_types import remapping as remapping
from ..core.registry import did_you_mean

_HUB_NAME = re.compile(r"[\w-][\w.-]{0,95}/[\w.-]{1,96}")
WHERE = "; the model type is model_type in config.json"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder: the model's type, its stop tokens, and a problem with them.

    ``config`` is its ``config.json``. ``eos`` maps each file with stop tokens to their ids;
    ``problem`` is one sentence with the remedy, empty if the folder has no problem. ``own_code`` is
    the field and file by which it runs its own code, empty if it runs none.
    """

    path: Path
    model_type: str
    config: dict[str, Any]
    eos: dict[str, list[int]]
    problem: str
    own_code: str = ""

    def implementations(self) -> dict[str, str]:
        """Installed distribution to the name of its module, or to the type if the code is here."""
        found = implementations(self.model_type)
        if not found and self.config.get("model_file") and source_file("mlx_lm.utils"):
            return {"mlx-lm": self.model_type}
        return found


def to_name(model: object) -> str:
    """A model type or a folder that a caller passed, as a string."""
    name = os.fspath(model) if isinstance(model, os.PathLike) else model
    if isinstance(name, str):
        return name
    shown = quote(repr(model))
    raise MlxPatchesError(f"model must be a string or a Path, not {shown}: give a type or a folder")


def folder_of(model: str) -> ModelFolder | None:
    """The model's folder if the text is its path or that of its ``config.json``, or None.

    A name on the Hub stands for its download folder; the Hub itself is not contacted.
    """
    if not model:
        return None
    path = Path(model)
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, ValueError):  # too long for a path, or contains a null character
        is_file = is_folder = False
    if is_folder:
        return read_folder(path)
    if is_file and path.suffix == ".json":
        if path.name != "config.json":
            raise MlxPatchesError(f"{quote(model)}: not a config.json; give the model's folder")
        return read_folder(path.parent)
    if not is_file and "/" not in model and not model.startswith("."):
        return None
    if _HUB_NAME.fullmatch(model) and (cached := _find_cached(model)):
        return read_folder(cached)
    raise MlxPatchesError(f"{quote(model)}: {_why_no_folder(path, is_file, model)}")


def _why_no_folder(path: Path, is_file: bool, model: str) -> str:
    if is_file and path.suffix == ".gguf":
        return "a GGUF file, which mlx-lm does not serve: give a model's folder, or a model type"
    if is_file:
        return "a file; give the model's folder"
    try:
        target = os.readlink(path)
    except (OSError, ValueError):
        where = f" here or in {_hub_cache()}" if _HUB_NAME.fullmatch(model) else ""
        return f"no such folder{where}: give the folder of the model, or its model type"
    return f"a link to {quote(target)}, which is not a folder: give the model's folder"


def _find_cached(name: str) -> Path | None:
    """The folder of a model's newest downloaded revision in the Hub's cache."""
    folder = _hub_cache() / f"models--{name.replace('/', '--')}"
    try:
        revision = (folder / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    found = folder / "snapshots" / revision
    return found if re.fullmatch(r"\w+", revision) and found.is_dir() else None


def _hub_cache() -> Path:
    if place := os.environ.get("HF_HUB_CACHE"):
        return Path(place)
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{home}/huggingface", "hub").expanduser()


def read_folder(path: Path) -> ModelFolder:
    config = read_config(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise MlxPatchesError(f"{path / 'config.json'}: no model_type; is this a model's folder?")
    eos, problem = stop_ids(path, config)
    return ModelFolder(path, model_type, config, eos, problem, find_own_code(path, config))


def find_unused_stops(folder: ModelFolder, package: str) -> list[int]:
    """The stop tokens of a folder that the installed release of a package does not use.

    Releases use those at the top of ``config.json``; newer ones replace them with those of
    ``generation_config.json``.
    """
    used = folder.eos.get("config.json", [])
    if "generation_config_file" in _text(source_file(f"{package}.utils")):
        used = folder.eos.get("generation_config.json", used)
    every = {id_ for ids in folder.eos.values() for id_ in ids}
    return sorted(every.difference(used))


def may_slide(config: Mapping[str, Any], module: str) -> bool:
    """Whether a model may have sliding-window layers; False only if its config excludes them.

    Args:
        config: the model's ``config.json``.
        module: the module that implements the model, whose defaults apply to absent keys.
    """
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    layers = text.get("layer_types")
    if isinstance(layers, list):
        return any("full" not in str(layer) for layer in layers)
    if any(value for key, value in text.items() if "window" in key):
        return True
    file = source_file(module)
    beside = file.with_name("config.py") if file and file.stem == "__init__" else file
    return not re.search(r"^ +sliding_window *:[^=\n]*= *None$", _text(beside), re.MULTILINE)


def _text(file: Path | None) -> str:
    """A source file's text; empty if there is none to read."""
    try:
        return file.read_text("utf-8", "replace") if file else ""
    except OSError:
        return ""


def unknown_type(name: str, installed: Sequence[str], known: Iterable[str]) -> MlxPatchesError:
    where = " or ".join(installed) or "this environment: no MLX package is installed"
    name = quote(name)
    return MlxPatchesError(f"no model type {name!r} in {where}{hint(name, known)}")


def hint(name: str, known: Iterable[str]) -> str:
    """The end of an error message: the closest known type, or where to find a model's type."""
    known = set(known)
    # A known type that is not installed here is not a misspelling.
    return WHERE if name in known else did_you_mean(name.lower(), known) or WHERE
