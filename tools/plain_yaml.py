"""Reads a YAML file as plain data, with the line number of every key.

Tags, aliases, duplicate keys, deep nesting and large files are refused with one message that names
the line: the file may be damaged or malicious.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import release_sets  # noqa: F401  puts this repository's package on the path
import yaml

from mlx_patches.core import files
from mlx_patches.core.errors import MlxPatchesError

MAX_BYTES = 2_000_000
MAX_EVENTS = 100_000  # keys, values, and both ends of each list
MAX_DEPTH = 20
MAX_DIGITS = 20
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"

Lines = dict[tuple[str | int, ...], int]


def read(path: Path) -> tuple[Any, Lines]:
    """Return the document and the line number (from 1) of each path in it.

    Raises:
        MlxPatchesError: naming file and line.
    """
    try:
        text = files.read(path, MAX_BYTES, "a matrix").decode()
        _check_size(text, path)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        problem = files.quoted(error.problem)
        raise MlxPatchesError(f"{path}: {where}not valid YAML: {problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = files.quoted(" ".join(str(error).split()))
        raise MlxPatchesError(f"{path}: cannot be read: {problem}") from None
    lines: Lines = {}
    return _construct(root, (), lines, path, set()), lines


def _check_size(text: str, file: Path) -> None:
    """Check size and depth before composing, which crashes on thousands of nested brackets."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if count > MAX_EVENTS:
            raise MlxPatchesError(f"{file}: more than {MAX_EVENTS} entries")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = f"line {event.start_mark.line + 1}: " if event.start_mark else ""
                raise MlxPatchesError(f"{file}: {line}nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _construct(
    node: yaml.Node | None, at: tuple[str | int, ...], lines: Lines, file: Path, seen: set[int]
) -> Any:
    if node is None:
        return None
    line = node.start_mark.line + 1
    lines.setdefault(at, line)
    if id(node) in seen:
        raise _refused(file, line, "an alias; write the value out")
    seen.add(id(node))
    tag = node.tag.removeprefix(_TAG)
    if not isinstance(node, yaml.ScalarNode) and tag not in ("map", "seq"):
        raise _refused(file, line, f"{node.tag} is not allowed here")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            key_line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise _refused(file, key_line, "a key must be plain text")
            if key in result:
                raise _refused(file, key_line, f"{key!r} is a duplicate key")
            lines[(*at, key)] = key_line
            result[key] = _construct(value_node, (*at, key), lines, file, seen)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _construct(item, (*at, index), lines, file, seen)
            for index, item in enumerate(node.value)
        ]
    if tag == "int" and node.value.isdigit() and len(node.value) < MAX_DIGITS:
        return int(node.value)
    if tag == "str":
        return node.value
    if tag == "null":
        return None
    if tag == "float":
        raise _refused(file, line, f'a number; quote a version: "{node.value}"')
    raise _refused(file, line, f"{node.tag} is not allowed here")


def _refused(file: Path, line: int, problem: str) -> MlxPatchesError:
    return MlxPatchesError(f"{file}: line {line}: {files.quoted(problem)}")
