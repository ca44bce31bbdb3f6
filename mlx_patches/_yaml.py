"""Reads a YAML file as plain data, with the line of every key, and refuses what is not plain.

No tags, no aliases, no duplicate keys, a bounded size: the file is data, and data that came
with an accident or an attack gets one line that says where.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ._errors import MlxPatchesError

MAX_BYTES = 2_000_000
MAX_DEPTH = 20
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"

Lines = dict[tuple[str | int, ...], int]


def read(path: Path) -> tuple[Any, Lines]:
    """Return the document and the line number (from 1) of each path in it.

    Raises:
        MlxPatchesError: naming file and line.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise MlxPatchesError(f"{path}: {size} bytes, more than the {MAX_BYTES} allowed")
        text = path.read_text(encoding="utf-8")
        _check_depth(text, path)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise MlxPatchesError(f"{path}: {where}not valid YAML: {error.problem}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = " ".join(str(error).split())
        raise MlxPatchesError(f"{path}: cannot be read: {problem}") from None
    lines: Lines = {}
    return _construct(root, (), lines, path, set()), lines


def _check_depth(text: str, file: Path) -> None:
    """Before composing, which ends the process on a file of nothing but brackets."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
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
        raise MlxPatchesError(f"{file}: line {line}: an alias; write the value out")
    seen.add(id(node))
    tag = node.tag.removeprefix(_TAG)
    if not isinstance(node, yaml.ScalarNode) and tag not in ("map", "seq"):
        raise MlxPatchesError(f"{file}: line {line}: {node.tag} is not allowed here")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            key_line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise MlxPatchesError(f"{file}: line {key_line}: a key must be plain text")
            if key in result:
                raise MlxPatchesError(f"{file}: line {key_line}: {key!r} stands here twice")
            lines[(*at, key)] = key_line
            result[key] = _construct(value_node, (*at, key), lines, file, seen)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [
            _construct(item, (*at, index), lines, file, seen)
            for index, item in enumerate(node.value)
        ]
    if tag == "int" and node.value.isdigit():
        return int(node.value)
    if tag == "str":
        return node.value
    if tag == "null":
        return None
    if tag == "float":
        raise MlxPatchesError(f'{file}: line {line}: a number; quote a version: "{node.value}"')
    raise MlxPatchesError(f"{file}: line {line}: {node.tag} is not allowed here")
