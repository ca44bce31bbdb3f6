"""Finds model families with a branch that only Metal takes, from the releases' source.

The lab measures on a CPU, where such a branch does not run. A family has one where its code
names, directly or through other definitions, a function or class that checks for Metal or for the
default device, or that makes a Metal kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from ..core.distributions import source_file
from ..core.packages import MODELS

Find = Callable[[str], Path | None]
# A module of a release, and a definition at its top level.
Place = tuple[str, str]


@dataclass(slots=True)
class _Definition:
    """The names that a definition uses, and whether it checks for Metal."""

    names: set[str] = field(default_factory=set)
    members: set[Place] = field(default_factory=set)
    metal: bool = False


@dataclass(slots=True)
class _Module:
    """A file: its definitions, and the modules and names that it imports.

    ``imports`` maps a name here to (module, name there); the name is empty for a whole module.
    ``stars`` are the modules from which everything is imported.
    """

    definitions: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, Place] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)


def metal_branches(package: str, family: str, find: Find = source_file) -> tuple[str, ...]:
    """The modules in which a family's code has a branch that only Metal takes.

    Args:
        package: the package of models.
        family: the model's module in that package.
        find: returns the source file of a module.
    """
    left = [
        (module, name)
        for module in _own_modules(f"{package}.{family}", find)
        for name in _read(module, find(module)).definitions
    ]
    found: dict[str, None] = {}
    seen = set(left)
    while left:
        module, name = left.pop()
        one = _read(module, find(module)).definitions[name]
        if one.metal:
            found[module] = None
        for place in _used(module, one, find):
            if place not in seen:
                seen.add(place)
                left.append(place)
    return tuple(sorted(map(_short, found)))


def _own_modules(name: str, find: Find) -> Iterator[str]:
    """A family's module and, if it is a package, its modules that the model runs."""
    path = find(name)
    if path is None:
        return
    yield name
    if path.name == "__init__.py":
        files = (file.stem for file in path.parent.glob("*.py"))
        yield from (
            f"{name}.{one}"
            for one in sorted(files)
            # These make inputs, configs and weight files; the model does not run them.
            if one != "__init__" and not one.startswith(("processing", "config", "convert"))
        )


def _used(module: str, one: _Definition, find: Find) -> Iterator[Place]:
    """The definitions that a definition names, in any module of models."""
    for name in one.names:
        yield from _places(module, name, find)
    for alias, name in one.members:
        target, inner = _read(module, find(module)).imports.get(alias, ("", ""))
        whole = f"{target}.{inner}" if inner else target
        if whole and find(whole) is not None:
            yield from _places(whole, name, find)


def _places(module: str, name: str, find: Find, depth: int = 8) -> Iterator[Place]:
    """Where a module's name is defined, following imports; only in packages of models."""
    package, _, inside = module.partition(".")
    # The engine checks for Metal only to limit memory: that does not change how a model runs.
    if not depth or package not in MODELS or inside.partition(".")[0] == "generate":
        return
    here = _read(module, find(module))
    if name in here.definitions:
        yield module, name
    elif name in here.imports:
        target, inner = here.imports[name]
        if inner:
            yield from _places(target, inner, find, depth - 1)
    else:
        for star in here.stars:
            yield from _places(star, name, find, depth - 1)


@cache
def _read(module: str, path: Path | None) -> _Module:
    """The contents of a module; empty if its file is missing or not Python."""
    found = _Module()
    try:
        tree = ast.parse(path.read_bytes()) if path else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError):
        return found
    parts = module.split(".")
    inside = parts if path and path.name == "__init__.py" else parts[:-1]
    for statement in tree.body:
        _take(statement, found, inside, asked=False)
    return found


def _take(statement: ast.stmt, found: _Module, package: list[str], asked: bool) -> None:
    """Add what a top-level statement defines; ``asked``: it is inside a check for Metal."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        names: Iterable[str] = [statement.name]
    elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    elif isinstance(statement, (ast.If, ast.Try, ast.With)):
        question = isinstance(statement, ast.If) and _definition(statement.test, found, package)
        below = asked or bool(question and question.metal)
        for child in ast.iter_child_nodes(statement):
            inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
            for one in inner:
                if isinstance(one, ast.stmt):
                    _take(one, found, package, below)
        return
    else:
        _definition(statement, found, package)  # called for its imports
        return
    here = _definition(statement, found, package)
    for name in names:
        known = found.definitions.setdefault(name, _Definition())
        known.names |= here.names
        known.members |= here.members
        known.metal |= here.metal or asked


def _definition(tree: ast.AST, found: _Module, package: list[str]) -> _Definition:
    """The names that some code uses; its imports are added to those of its module."""
    one = _Definition()
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name):
            one.names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            _import(node, found, package)
        elif isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name):
                one.members.add((node.value.id, node.attr))
            one.metal |= node.attr == "metal_kernel" or (
                node.attr == "is_available" and _last(node.value) == "metal"
            )
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            one.metal |= any(
                isinstance(side, ast.Call) and _last(side.func) == "default_device"
                for side in sides
            )
        elif isinstance(node, ast.Call) and _last(node.func) == "isinstance":
            left += node.args[:1]  # the class in a type check is not run here
            continue
        left += ast.iter_child_nodes(node)
    return one


def _import(node: ast.Import | ast.ImportFrom, found: _Module, package: list[str]) -> None:
    if isinstance(node, ast.Import):
        for alias in node.names:
            found.imports[alias.asname or alias.name] = (alias.name, "")
        return
    base = package[: len(package) - node.level + 1] if node.level else []
    source = ".".join([*base, *filter(None, [node.module])])
    for alias in node.names:
        if alias.name == "*":
            found.stars.append(source)
        else:
            found.imports[alias.asname or alias.name] = (source, alias.name)


def _short(module: str) -> str:
    """A module's name without the package that all models are in."""
    package, _, inside = module.partition(".models.")
    return inside or package.partition(".")[2]


def _last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
