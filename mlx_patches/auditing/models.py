"""Model types: which installed package implements one, and what a model's folder says."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..core import files
from ..core.distributions import source_file
from ..core.errors import MlxPatchesError
from ..core.packages import MODEL_PACKAGES

MAX_CONFIG_BYTES = 10_000_000
MAX_NAME = 100


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model's folder: its type, and what its generation config adds or gets wrong.

    ``eos`` holds the stop ids of each file that names some; ``problem`` is one sentence with
    the remedy, empty where the folder is fine.
    """

    path: Path
    model_type: str
    eos: dict[str, list[int]]
    problem: str


def read_folder(path: Path) -> ModelFolder:
    """Read a model's folder.

    Raises:
        MlxPatchesError: ``config.json`` is missing or cannot be used.
    """
    config = _json_object(path / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise MlxPatchesError(f"{path / 'config.json'}: no model_type; is this a model's folder?")
    eos, problem = stop_ids(path, config)
    return ModelFolder(path, model_type, eos, problem)


def stop_ids(
    folder: Path, config: dict[str, Any] | None = None
) -> tuple[dict[str, list[int]], str]:
    """The stop tokens that a model's folder names, file by file, and what is wrong with them.

    A missing file names none. A broken one names none either, and is the second value: one
    sentence with the remedy, empty where all is well.

    Args:
        folder: the model's folder.
        config: its ``config.json``, where it was read already.
    """
    problems = []
    contents: dict[str, dict[str, Any]] = {}
    for name in ("config.json", "generation_config.json"):
        if name == "config.json" and config is not None:
            contents[name] = config
        elif (folder / name).exists():
            try:
                contents[name] = _json_object(folder / name)
            except MlxPatchesError as error:
                problems.append(f"{error}; its stop tokens are not used until it is mended")
    text_config = contents.get("config.json", {}).get("text_config")
    if isinstance(text_config, dict):
        contents["config.json: text_config"] = text_config
    found = {}
    for name, content in contents.items():
        try:
            found[name] = _ids(content.get("eos_token_id"))
        except ValueError as error:
            problems.append(f"{folder / name}: {error}; its stop tokens are not used")
    return {name: ids for name, ids in found.items() if ids}, "; ".join(problems)


def implementations(model_type: str) -> dict[str, str]:
    """Distribution to the name of the module that implements a model type, where installed."""
    found = {}
    for package, distribution in MODEL_PACKAGES.items():
        name = remapping(package).get(model_type, model_type).replace("-", "_")
        if is_name(name) and exists(f"{package}.{name}"):
            found[distribution] = name
    return found


def is_name(text: str) -> bool:
    """Whether a text can be the name of a model's module."""
    return text.isidentifier() and not text.startswith("__") and len(text) < MAX_NAME


@cache
def remapping(package: str) -> dict[str, str]:
    """A package's ``MODEL_REMAPPING``, read from its source; empty where it has none."""
    path = source_file(f"{package.partition('.')[0]}.utils")
    try:
        tree = ast.parse(path.read_bytes()) if path else ast.Module([], [])
    except (OSError, SyntaxError):
        return {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "MODEL_REMAPPING" for t in node.targets
        ):
            try:
                return dict(ast.literal_eval(node.value))
            except (ValueError, TypeError):
                return {}
    return {}


def exists(module: str) -> bool:
    """True where a module is installed, found without importing it."""
    parent, _, name = module.rpartition(".")
    init = source_file(parent)
    folder = init.parent if init else None
    if folder is None:  # mlx_lm.models has no __init__.py in some releases
        root = source_file(parent.partition(".")[0])
        folder = root.parent / "models" if root else None
    return folder is not None and (
        (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()
    )


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(files.read(path, MAX_CONFIG_BYTES, "a config"))
    except FileNotFoundError:
        raise MlxPatchesError(f"{path}: no such file; is this a model's folder?") from None
    except (OSError, UnicodeDecodeError) as error:
        raise MlxPatchesError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise MlxPatchesError(
            f"{path}: line {error.lineno}: not valid JSON ({error.msg}); download it again"
        ) from None
    except RecursionError:
        raise MlxPatchesError(f"{path}: nested too deeply; not a config") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise MlxPatchesError(f"{path}: not a config: {error}") from None
    if not isinstance(content, dict):
        raise MlxPatchesError(f"{path}: not a JSON object; download it again")
    return content


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    ids = [v for v in values if v is not None]
    if any(isinstance(v, bool) or not isinstance(v, int) for v in ids):
        shown = files.quoted(repr(value))
        raise ValueError(f"eos_token_id is {shown}, not an id or a list of ids")
    return [v for v in ids if v >= 0]
