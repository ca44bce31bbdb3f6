"""The user's settings: ``[tool.mlx-patches]`` in pyproject.toml, and the user's config.toml."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ..activation import profiles, settings
from ..core import files
from ..core.errors import MlxPatchesError
from ..core.files import printable
from ..evidence.words import choose_severities

TABLE = "mlx-patches"
# Larger files are not settings.
MAX_BYTES = 1_000_000


def read(parameters: Collection[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The defaults of a command's parameters, and the file of each.

    A project's settings override the user's, and the environment's profile overrides both.
    """
    found: dict[str, Any] = {}
    files: dict[str, str] = {}
    if not {key.replace("-", "_") for key in _KEYS} & {*parameters}:
        return found, files
    for path, table in _tables():
        for key, value in table.items():
            if key not in _KEYS:
                raise MlxPatchesError(f"{path}: unknown key {key!r}; use {', '.join(_KEYS)}")
            name = key.replace("-", "_")
            try:
                value = _KEYS[key](value)
            except (MlxPatchesError, TypeError) as error:
                raise MlxPatchesError(f"{path}: {key}: {error}") from None
            if name in parameters and not (name == "profile" and settings.profile()):
                found[name], files[name] = value, path
    return found, files


def _tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """The files with settings, the user's first, and their settings."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    if table := _table(Path(home, TABLE, "config.toml")):
        yield table
    try:
        here = Path.cwd()
    except OSError:  # it was removed
        return
    for folder in (here, *here.parents):
        if table := _table(folder / "pyproject.toml"):
            yield table
            return


def _table(path: Path) -> tuple[str, dict[str, Any]] | None:
    """A file's settings; None if it has none."""
    project = path.name == "pyproject.toml"
    if not os.path.lexists(path):
        return None
    try:
        data = files.read(path, MAX_BYTES, "settings")
    except OSError as error:
        why = f"cannot be read ({error.strerror}); make it a file that you can read"
        raise MlxPatchesError(f"{printable(path)}: {why}") from None
    # UTF-16 puts a zero byte between letters.
    if project and not re.search(rb"mlx[-_]patches", data.replace(b"\0", b"")):
        return None
    import tomllib

    try:
        table: Any = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise MlxPatchesError(f"{printable(path)}: not UTF-8; save it as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise MlxPatchesError(f"{printable(path)}: not TOML: {error}; correct this line") from None
    name = printable(path)
    if project:
        tool = table.get("tool")
        if isinstance(tool, dict) and "mlx_patches" in tool:
            raise MlxPatchesError(f"{name}: [tool.mlx_patches]: write it as [tool.{TABLE}]")
        table, name = tool.get(TABLE) if isinstance(tool, dict) else None, f"{name}: [tool.{TABLE}]"
    if table is not None and not isinstance(table, dict):
        raise MlxPatchesError(f"{name}: expected a table")
    return None if table is None else (name, table)


def _profile(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError('expected a string, such as "safe"')
    profiles.choose(value)
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError('expected a list of strings, such as ["a", "b"]')
    return value


def _severities(value: Any) -> str:
    if not choose_severities(_texts(value)):
        raise TypeError("expected at least one severity; omit the key for the default")
    return ",".join(value)


def _patches(value: Any) -> list[str]:
    from ..activation.session import session

    return [session().registry.find_declared(one).id for one in _texts(value)]


_KEYS: dict[str, Callable[[Any], Any]] = {
    "fail-on": _severities,
    "ignore": _patches,
    "profile": _profile,
}
