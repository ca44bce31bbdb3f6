"""A function's fingerprint: a hash of its canonical AST.

Docstrings, positions, comments and formatting are ignored, and the hash is the same on every
supported Python, so evidence measured on one applies to the others.
"""

import ast
import hashlib
import inspect
import linecache
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from . import known_files

# Fields that differ between Python versions or do not affect behaviour.
_DROPPED = {"ctx", "kind", "type_params", "type_comment"}
_Definition = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def hash_object(obj: Any) -> str | None:
    """Fingerprint of a live function, method or property; None if it has no source."""
    known = _look_up_print(obj)
    if known is not None:
        return known
    trees = []
    for function in functions_of(obj):
        tree = parse_function(function)
        if tree is None:
            return None
        trees.append(tree)
    return _hash(trees) if trees else None


def parse_function(function: Any) -> ast.AST | None:
    try:
        return _parse(_source(function))
    except (OSError, TypeError, SyntaxError, IndexError, AttributeError):
        return None


def _look_up_print(obj: Any) -> str | None:
    """The fingerprint of a function, method or property, from the table of known files."""
    functions = list(functions_of(obj))
    codes: list[Any] = [getattr(function, "__code__", None) for function in functions]
    if not codes or None in codes:
        return None
    entry = known_files.entry_of(codes[0].co_filename)
    found = entry.get(functions[0].__qualname__)
    if found is None or [code.co_firstlineno for code in codes] != found[1]:
        return None
    same = all(code.co_filename == codes[0].co_filename for code in codes)
    return found[0] if same else None


def _source(function: Any) -> str:
    """``inspect.getsource`` without its search for the module, which takes 20 ms."""
    code = function.__code__
    # Python 3.13 returns the source of ``-c`` for any code compiled as "<string>".
    named = not code.co_filename.startswith("<")
    lines = linecache.getlines(code.co_filename, function.__globals__) if named else []
    if not lines:
        raise OSError(f"no source of {function.__qualname__}")
    return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))


def hash_file(path: Path, names: Iterable[str]) -> dict[str, str]:
    """Fingerprints of the definitions in a source file, without importing it.

    Args:
        names: qualified names; those that the file does not define are skipped.

    Raises:
        OSError, SyntaxError: the file cannot be read or parsed.
    """
    names = list(names)
    entry = known_files.entry_of(str(path))
    if all(name in entry for name in names):
        known = {name: entry[name] for name in names}
        return {name: one[0] for name, one in known.items() if one is not None}
    tree = ast.parse(path.read_bytes())
    found = {name: _find(tree, name.split(".")) for name in names}
    return {name: _hash(nodes) for name, nodes in found.items() if nodes}


def hash_module(content: bytes) -> str:
    return _hash([ast.parse(content)])


def describe_file(content: bytes, names: Iterable[str]) -> known_files.Entry:
    tree = ast.parse(content)
    entry: known_files.Entry = {}
    for name in names:
        nodes = _find(tree, name.split("."))
        # The ``co_firstlineno`` of a definition is the line of its first decorator.
        heads: list[list[Any]] = [[node, *node.decorator_list] for node in nodes]
        lines = [min(one.lineno for one in head) for head in heads]
        entry[name] = (_hash(nodes), lines) if nodes else None
    return entry


def combine(prints: Mapping[str, str | None]) -> str | None:
    """One fingerprint for several bodies; None if one of them has no source."""
    if None in prints.values():
        return None
    if len(prints) == 1:
        return next(iter(prints.values()))
    text = ",".join(f"{name}={value}" for name, value in prints.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def accessors(obj: Any) -> tuple[Any, ...]:
    """The function of an attribute; for a property its getter, setter and deleter, or None."""
    if isinstance(obj, property):
        return obj.fget, obj.fset, obj.fdel
    return (obj.__func__ if isinstance(obj, (classmethod, staticmethod)) else obj,)


def functions_of(obj: Any) -> Iterator[Any]:
    """Yield the plain functions behind an attribute, without their wrappers."""
    for accessor in accessors(obj):
        if accessor is not None:
            # Start-up checks hundreds, and few have a wrapper.
            yield inspect.unwrap(accessor) if hasattr(accessor, "__wrapped__") else accessor


def _parse(source: str) -> ast.AST:
    """Parse the source of one definition, which may be indented.

    Indented source is parsed under an ``if``: dedenting would change its multi-line strings, or
    fail on them.
    """
    if not source[0].isspace():
        return ast.parse(source).body[0]
    branch = ast.parse("if 1:\n" + source).body[0]
    assert isinstance(branch, ast.If)
    return branch.body[0]


def _find(tree: ast.AST, path: list[str]) -> list[Any]:
    """All definitions of a qualified name: a property has one per accessor."""
    scopes: list[Any] = [tree]
    for name in path:
        scopes = [node for scope in scopes for node in _definitions(scope) if node.name == name]
    return scopes


def _definitions(scope: ast.AST) -> Iterator[Any]:
    """Definitions in a scope, including those under ``if``, ``try`` and ``with``."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Definition):
            yield node
        elif isinstance(node, (ast.If, ast.Try, ast.ExceptHandler, ast.With)):
            yield from _definitions(node)


def _hash(trees: Iterable[ast.AST]) -> str:
    text = "\n".join(_canonical(tree) for tree in trees)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _canonical(node: Any) -> str:
    if isinstance(node, list):
        return "[" + ",".join(map(_canonical, node)) + "]"
    if not isinstance(node, ast.AST):
        return ascii(node)  # repr depends on the Unicode version
    parts = []
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(node, _Definition):
            value = value[ast.get_docstring(node, clean=False) is not None :]
        elif field == "values" and isinstance(node, ast.JoinedStr):
            # Python 3.12 puts empty constants next to nested format specifications.
            value = [part for part in value if getattr(part, "value", None) != ""]
        if value is None or value == [] or field in _DROPPED:
            continue
        parts.append(f"{field}={_canonical(value)}")
    return f"{type(node).__name__}({','.join(parts)})"
