"""Reads the JSON files next to a model's weights, and the stop tokens in them."""

import contextlib
import json
import math
import os
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import files
from .errors import MlxPatchesError

# The variable by which a user lets model folders run their own code.
CONSENT = "MLX_PATCHES_TRUST_REMOTE_CODE"
MAX_CONFIG_BYTES = 10_000_000
# The fields with a model's sliding window.
WINDOWS = ("sliding_window", "attention_chunk_size", "attention_window_size")
# The type of each field that this package reads: a type, [a type] for a list, or the fields of an
# object.
_ROPE: dict[str, Any] = {"rope_type": str, "type": str}
_ROPES = {**_ROPE, "full_attention": _ROPE}
_TEXT = {
    "rope_parameters": _ROPES,
    "rope_scaling": _ROPES,
    "layer_types": [str],
    **dict.fromkeys(WINDOWS, int),
}
_CONFIG = {**_TEXT, "text_config": _TEXT, "model_file": str}
# Other files that may name code of the folder.
_PROCESSORS = ("tokenizer", "processor", "preprocessor", "video_preprocessor")
_NAMES = {dict: "an object", list: "a list", str: "a string", int: "a whole number"}


def stop_ids(
    folder: Path, config: dict[str, Any] | None = None
) -> tuple[dict[str, list[int]], str]:
    """Read the stop tokens in a model's folder; ``config`` is its ``config.json``, if known.

    Returns file name to its stop tokens, and the problems of broken files with their remedies, as
    one text; empty if there are none.
    """
    problems = []
    contents: dict[str, dict[str, Any]] = {}
    for name in ("config.json", "generation_config.json"):
        if name == "config.json" and config is not None:
            contents[name] = config
        elif (folder / name).exists():
            try:
                contents[name] = read_object(folder / name)
            except MlxPatchesError as error:
                problems.append(f"{error}; its stop tokens are not used until it is repaired")
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


def read_config(folder: Path) -> dict[str, Any]:
    """The ``config.json`` of a model's folder, whose fields have the right types."""
    path = folder / "config.json"
    config = read_object(path)
    if problem := _odd_field("", config, _CONFIG):
        raise MlxPatchesError(f"{path}: {problem}; correct it, or download the file again")
    return config


def has_consent() -> bool:
    """Whether the user lets model folders run their own code."""
    return os.environ.get(CONSENT, "").lower() in ("1", "true", "yes", "on")


def find_own_code(folder: Path, config: dict[str, Any]) -> str:
    """The field and file by which a folder runs its own code; empty if it runs none.

    Raises:
        MlxPatchesError: a file is too large to check.
    """
    for field in ("model_file", "auto_map"):
        if config.get(field):
            return f"{field} in config.json"
    for file in (f"{name}_config.json" for name in _PROCESSORS):
        place = folder / file
        if place.is_file() and place.stat().st_size > MAX_CONFIG_BYTES:
            raise MlxPatchesError(f"{place}: larger than {MAX_CONFIG_BYTES} bytes; not a config")
        with contextlib.suppress(MlxPatchesError):  # missing, or broken
            content = read_object(place)
            # transformers 5 saves a processor's parts as objects in its file.
            parts = [one for one in (content, *content.values()) if isinstance(one, dict)]
            if any(one.get("auto_map") for one in parts):
                return f"auto_map in {file}"
    return ""


def _odd_field(name: str, value: Any, kind: Any) -> str:
    """The first field in a value with the wrong type, as a sentence; empty if there is none."""
    wanted: type = kind if isinstance(kind, type) else type(kind)
    if not _is_a(value, wanted):
        return f"{name} is {show(value)}, not {_NAMES[wanted]}"
    inner: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(kind, list):
        inner = ((f"{name}[{index}]", one, kind[0]) for index, one in enumerate(value))
    elif isinstance(kind, dict):
        # Every reader treats a false value, such as null, as missing.
        found = (key for key in kind if value.get(key))
        inner = ((f"{name}.{key}".lstrip("."), value[key], kind[key]) for key in found)
    return next(filter(None, (_odd_field(*one) for one in inner)), "")


def _is_a(value: Any, kind: type) -> bool:
    if kind is int:
        return is_number(value) and isinstance(value, int) and value >= 0
    return isinstance(value, kind)


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def show(value: Any) -> str:
    """A value for a message, cut short if it is large or deeply nested."""
    return files.quote(reprlib.repr(value))


def read_object(path: Path) -> dict[str, Any]:
    try:
        # Releases read it as UTF-8, without a byte order mark.
        content = json.loads(files.read(path, MAX_CONFIG_BYTES, "a config").decode())
    except FileNotFoundError:
        raise MlxPatchesError(f"{path}: no such file; is this a model's folder?") from None
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be read: {error}") from None
    except json.JSONDecodeError as error:
        raise MlxPatchesError(
            f"{path}: line {error.lineno}: not valid JSON ({error.msg}); download it again"
        ) from None
    except RecursionError:
        raise MlxPatchesError(f"{path}: nested too deeply; not a config") from None
    except ValueError:  # not UTF-8, or a number with more digits than Python converts
        raise MlxPatchesError(
            f"{path}: not UTF-8, or with a too long number; download it again"
        ) from None
    if not isinstance(content, dict):
        raise MlxPatchesError(f"{path}: not a JSON object; download it again")
    return content


def _ids(value: Any) -> list[int]:
    values = value if isinstance(value, list) else [value]
    ids = [v for v in values if v is not None]
    if any(isinstance(v, bool) or not isinstance(v, int) or v >= 2**63 for v in ids):
        raise ValueError(f"eos_token_id is {show(value)}, not an id or a list of ids")
    return [v for v in ids if v >= 0]
