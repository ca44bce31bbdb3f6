"""The code that the lab measured: a hash of each file that a model family runs.

A file is recognised by its bytes, or by its canonical AST, which ignores comments.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core import fingerprint
from ..core.packages import DISTRIBUTIONS
from .store import reading

# Written by tools/mark_code.py. ``sets``: release set to the releases of its model packages;
# ``images``: the same for sets in which only images were measured.
# ``modules``: module to rows of a file's digest, its fingerprint, and the releases that have it.
TABLE = Path(__file__).parent / "code.json"
Find = Callable[[str], Path | None]


def sets_of(distribution: str, version: str = "", images: bool = False) -> list[str]:
    """The measured sets of a distribution: the one of this version first, then the newest first.

    ``images``: also those in which only images were measured.
    """
    sets = _read_sets() if images else _table()["sets"]
    names = [name for name in sets if name.split()[0] == distribution]
    names.sort(key=_version, reverse=True)
    return sorted(names, key=lambda name: name.split()[1] != version)


@functools.cache
def _version(name: str) -> Any:
    from packaging.version import Version

    return Version(name.split()[1])


def releases_of(name: str) -> Mapping[str, str]:
    """Distribution to version, for the model packages of a set."""
    return _read_sets()[name]


def _read_sets() -> dict[str, Mapping[str, str]]:
    return {**_table()["sets"], **_table().get("images", {})}


def modules_of(name: str) -> list[str]:
    table, releases = _table(), releases_of(name)
    numbers = {one: table["releases"].index(f"{one} {v}") for one, v in releases.items()}
    return [
        module
        for module, rows in table["modules"].items()
        if any(numbers.get(_distribution(module)) in where for _, _, where in rows)
    ]


def differing(name: str, modules: Iterable[str], find: Find) -> list[str]:
    """The modules whose installed code differs from that of a measured set."""
    releases = releases_of(name)
    return [
        module
        for module in modules
        if (file := find(module)) is None
        or releases.get(_distribution(module)) not in _find_versions(module, file)
    ]


@functools.cache
def _find_versions(module: str, file: Path) -> Collection[str | None]:
    rows = _table()["modules"].get(module, ())
    try:
        content = file.read_bytes()
        own = digest(content)
        prints = {row[1] for row in rows if row[0] == own}
        if rows and not prints:
            prints = {fingerprint.hash_module(content)}
    except (OSError, SyntaxError, ValueError):
        return ()
    numbers = {number for _, one, where in rows if one in prints for number in where}
    return {_table()["releases"][number].split()[1] for number in numbers}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _distribution(module: str) -> str:
    return DISTRIBUTIONS.get(module.partition(".")[0], "")


@functools.cache
def _table() -> dict[str, Any]:
    with reading(TABLE):
        found: dict[str, Any] = json.loads(TABLE.read_bytes())
        return found
