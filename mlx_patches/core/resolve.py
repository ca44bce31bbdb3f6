"""Finds a target in this process, or in its source file.

The gate decides both in the same way, so an audit of files agrees with a patched process.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from . import fingerprint, known_files
from .distributions import source_file
from .foreign import find_replacement
from .patch import MISSING, Target
from .record import Record


class Found(Record):
    """A target as it was found.

    Args:
        body: the fingerprint of the code that carries the defect; None if it has no source.
        missing: why there is nothing to patch, as a sentence; empty if the target was found.
        foreign: the name of another package's function that replaced the target; empty if none.
        owner: the live module or class; None in a file.
        original: the live attribute without our layers, ``MISSING`` if there is none.
        released: measured releases have its code.
        note: the end of a reason: another package's function in place of one with the defect.
    """

    body: str | None = None
    missing: str = ""
    foreign: str = ""
    owner: Any = None
    original: Any = MISSING
    released: bool = False
    note: str = ""


def in_process(module: ModuleType, target: Target, originals: Mapping[str, Any]) -> Found:
    """Find a target in its module.

    ``originals``: path to the original object, for paths at which our sites are in effect.
    """
    owner: Any = module
    *parents, attribute = target.name.split(".")
    for name in parents:
        owner = vars(owner).get(name, MISSING)
        if not isinstance(owner, type):
            return Found(missing=f"{target.module} has no class {name}")
        if owner.__module__ != module.__name__:
            return Found(missing=f"{name} comes from {owner.__module__}")
        if owner.__name__ != name:  # the file does not define that name either
            return Found(missing=f"{name} is another name of {owner.__name__}")
    live = vars(owner).get(attribute, MISSING)
    original = originals.get(target.path, live)
    if live is MISSING and original is MISSING and not target.defines_new_attribute:
        return Found(missing=f"{target.path} does not exist in this release")
    prints: dict[str, str | None] = {}
    bodies = {name: _lookup(module, name) for name in target.bodies}
    for name, body in bodies.items():
        if isinstance(body, type):  # a class has no code: read its module's file
            file = Path(getattr(module, "__file__", None) or "")
            parsed = _parse(file, frozenset([name])) if file.suffix == ".py" else None
            prints[name] = (parsed or {}).get(name)
        elif body is not MISSING:
            prints[name] = fingerprint.hash_object(body)
    if not prints:
        return Found(missing=f"{target.module} has none of {', '.join(target.bodies)}")
    foreign = find_replacement(original, module)
    if target.defines_new_attribute and original is not MISSING:
        missing = f"{foreign or 'the release'} defines {target.path} itself"
        return Found(missing=missing, foreign=foreign)
    if foreign and not target.defines_new_attribute and not _is_defined_in_file(target):
        return Found(missing=f"{target.name} comes from {foreign}")
    path = getattr(module, "__file__", None) or ""
    released, entry = known_files.has(path, prints), known_files.entry_of(path)
    unknown = [
        name
        for name, value in prints.items()
        if not (released and value) or (entry and (entry.get(name) or ("",))[0] != value)
    ]
    replaced = {name: find_replacement(bodies[name], module) for name in unknown}
    note = "".join(f"; {name} was replaced by {by}" for name, by in replaced.items() if by)
    return Found(fingerprint.combine(prints), "", foreign, owner, original, released, note)


def in_file(target: Target, names: Iterable[str] = ()) -> Found:
    """Find a target in its module's source file, without importing it.

    ``names``: further names that later calls look up in this file, so that it is parsed once.
    """
    path = source_file(target.module)
    if path is None:
        return Found(missing=f"{target.module} does not exist in this release")
    is_known = known_files.entry_of(str(path)).keys() >= set(target.mentions)
    prints = _parse(path, frozenset(target.mentions if is_known else [*names, *target.mentions]))
    if prints is None:
        return Found(missing=f"{path} cannot be read as Python")
    found = {name: prints[name] for name in target.bodies if name in prints}
    owner = target.name.partition(".")[0]
    present = target.name in prints or (
        target.defines_new_attribute and any(name.partition(".")[0] == owner for name in prints)
    )
    if not found or not present:
        lacks = target.name if owner in prints else owner
        return Found(missing=f"{target.module} does not define {lacks}")
    if target.defines_new_attribute and target.name in prints:
        return Found(missing=f"the release defines {target.path} itself")
    released = known_files.has(str(path), found)
    return Found(fingerprint.combine(found), released=released)


@cache
def _parse(path: Path, names: frozenset[str]) -> dict[str, str] | None:
    """A file's qualified names to their fingerprints; None if it cannot be read or parsed."""
    try:
        return fingerprint.hash_file(path, sorted(names))
    except (OSError, SyntaxError, ValueError):
        return None


def _is_defined_in_file(target: Target) -> bool:
    """Whether the release's file defines a target, rather than importing it."""
    path = source_file(target.module)
    found = _parse(path, frozenset([target.name])) if path else None
    return found is None or bool(found)


def _lookup(module: ModuleType, name: str) -> Any:
    """The object that a module defines under a name; imported classes are not in its file."""
    scope: Any = module
    for part in name.split("."):
        scope = vars(scope).get(part, MISSING) if hasattr(scope, "__dict__") else MISSING
        if isinstance(scope, type) and scope.__module__ != module.__name__:
            return MISSING
    return scope
