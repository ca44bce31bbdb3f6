"""Reads the JSON files beside a model's weights, and the stop tokens in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import files
from .errors import MlxPatchesError

MAX_CONFIG_BYTES = 10_000_000


def stop_ids(
    folder: Path, config: dict[str, Any] | None = None
) -> tuple[dict[str, list[int]], str]:
    """Read the stop tokens that a model's folder names.

    Args:
        folder: the model's folder; missing files are skipped.
        config: its ``config.json``, if it was read already.

    Returns:
        File name to its stop tokens, and the problems of broken files with their remedies, as one
        text; empty if there are none.
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


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in one of a model's files.

    Raises:
        MlxPatchesError: it cannot be read, or is not a JSON object.
    """
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
    except ValueError as error:  # a number with more digits than Python converts
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
