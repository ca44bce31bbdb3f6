"""Reads compat_matrix.yaml, refuses what is malformed or contradicts itself, and compiles it.

The package ships the compiled form alone: reading YAML, checking it and parsing version ranges
takes tens of milliseconds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import fastjsonschema
import plain_yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from release_sets import ROOT

from mlx_patches.core import files
from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.matrix.matrix import FORMAT, CompatMatrix
from mlx_patches.matrix.ranges import find_in_both

MATRIX = ROOT / "compat_matrix.yaml"
SCHEMA = 1
_SCHEMA_FILE = Path(__file__).parent / "matrix_schema.json"


def load(path: Path = MATRIX) -> CompatMatrix:
    """Read and check a matrix file.

    Raises:
        MlxPatchesError: naming file, line and key.
    """
    return CompatMatrix(read(path))


def compile_matrix(path: Path = MATRIX) -> str:
    """The text of a matrix file's compiled form."""
    content = {"format": FORMAT, "document": compiled(read(path))}
    return json.dumps(content, indent=None, separators=(",", ":"), sort_keys=True) + "\n"


def compiled(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the answer for each measured release filled in.

    A patch's rules are JSON in a string: start-up parses those of the patches that it decides.
    """
    matrix = CompatMatrix(document)
    made: dict[str, Any] = json.loads(json.dumps(document))
    for patch, rules in made["patches"].items():
        for distribution, raw in rules.items():
            rule = matrix.rule(patch, distribution)
            assert rule is not None
            decided = map(rule.decide, matrix.releases.get(distribution, ()))
            raw["decided"] = "".join(decision[0] for decision in decided)
        made["patches"][patch] = json.dumps(rules, separators=(",", ":"))
    return made


def read(path: Path) -> dict[str, Any]:
    """Return the document of a matrix file that satisfies the schema and contradicts nothing.

    Raises:
        MlxPatchesError: naming file, line and key.
    """
    document, lines = plain_yaml.read(path)

    def fail(at: Iterable[str | int], problem: str) -> MlxPatchesError:
        at = tuple(at)
        known = next(at[:n] for n in range(len(at), -1, -1) if at[:n] in lines or n == 0)
        line = f"line {lines[known]}: " if known in lines else ""
        key, said = map(files.quoted, (".".join(map(str, at)) or "document", problem))
        return MlxPatchesError(f"{path}: {line}{key}: {said}")

    if isinstance(document, dict) and document.get("schema") not in (None, SCHEMA):
        raise fail(
            ("schema",),
            f"version {document['schema']} is not known to this mlx-patches (it reads {SCHEMA}); "
            "upgrade mlx-patches",
        )
    try:
        _schema()(document)
    except fastjsonschema.JsonSchemaValueException as error:
        at = tuple(int(p) if p.isdigit() else p for p in _real_path(error, document))
        raise fail(at, error.message.replace(error.name or "data", "it", 1)) from None
    _check_ranges(document, fail)
    _check_ids(document, fail)
    return document  # type: ignore[no-any-return]


@functools.cache
def _schema() -> Callable[[Any], Any]:
    """The check of a document against the schema; compiling it takes longer than a check."""
    check: Callable[[Any], Any] = fastjsonschema.compile(json.loads(_SCHEMA_FILE.read_bytes()))
    return check


def _real_path(error: Any, document: Any) -> list[str]:
    """The keys that lead to a schema error: the library joins them with dots."""
    name = (error.name or "data").removeprefix("data")
    path: list[str] = []
    node = document
    while name:
        if name.startswith("["):
            index, _, name = name[1:].partition("]")
            path.append(index)
            node = node[int(index)] if isinstance(node, list) else None
            continue
        name = name.removeprefix(".")
        keys = [str(k) for k in node] if isinstance(node, dict) else []
        match = max((k for k in keys if name.startswith(k)), key=len, default=name)
        path.append(match)
        node = node.get(match) if isinstance(node, dict) else None
        name = name[len(match) :]
    return path


def _check_ranges(document: Mapping[str, Any], fail: Any) -> None:
    def check(specifier: str, *at: str | int) -> None:
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier as error:
            raise fail(at, str(error)) from None

    for distribution, versions in document["releases"].items():
        where = ("releases", distribution)
        try:
            parsed = [Version(version) for version in versions]
        except InvalidVersion as error:
            raise fail(where, str(error)) from None
        if parsed != sorted(set(parsed)):
            raise fail(where, "list each release once, oldest first")
    for patch, rules in document["patches"].items():
        for distribution, rule in rules.items():
            at = ("patches", patch, distribution)
            for key in ("affected", "fixed"):
                check(rule.get(key, ""), *at, key)
            if not rule["affected"]:
                raise fail((*at, "affected"), "an empty range would match every release")
            if fixed := rule.get("fixed", ""):
                releases = document["releases"].get(distribution, ())
                point = find_in_both(rule["affected"], fixed, releases)
                if point is not None:
                    raise fail(at, f"{point} is both affected and fixed")
            for target, bodies in rule.get("bodies", {}).items():
                both = set(bodies.get("affected", ())) & set(bodies.get("sound", ()))
                if both:
                    raise fail((*at, "bodies", target), f"{min(both)} is both affected and sound")
    for table in ("broken_sets", "warnings"):
        for index, one in enumerate(document.get(table, ())):
            for name, specifier in one["when"].items():
                check(specifier, table, index, "when", name)


def _check_ids(document: Mapping[str, Any], fail: Any) -> None:
    def known(ids: list[str], at: tuple[str | int, ...]) -> None:
        for index, patch in enumerate(ids):
            if patch not in document["patches"]:
                raise fail((*at, index), f"no patch {patch!r} in patches")

    known(document["always"], ("always",))
    for model, row in document["models"].items():
        for distribution, ids in row.items():
            known(ids, ("models", model, distribution))
