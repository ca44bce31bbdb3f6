"""Reads evidence that others measured with ``mlx-patches lab --evidence``, and checks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.packages import MODEL_PACKAGES
from mlx_patches.evidence.words import DEVICES, DTYPES, LETTERS, SCENARIOS, current_id
from mlx_patches.lab.child import BUILD
from mlx_patches.lab.record import DETAILED, FACTS, KERNELS, NOT_REACHED, PARTS, RAN

_TEXTS = tuple(f"details_{part}" for part in PARTS)
# In bytes; a release's evidence is much smaller.
_LARGEST = 16 * 2**20


def read(path: Path) -> dict[str, Any]:
    """Read and check an evidence file, which may come from a third party."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise MlxPatchesError(f"{path}: too large for evidence (over 16 MiB)")
        content = json.loads(text)
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise MlxPatchesError(f"{path}: not JSON: {error}") from None
    problem = _problem(_rename_scenarios(content))
    if problem:
        raise MlxPatchesError(f"{path}: not evidence of `mlx-patches lab`: {problem}")
    return dict(content)


def _rename_scenarios(content: Any) -> Any:
    for part in (*PARTS, *_TEXTS) if isinstance(content, dict) else ():
        if _is_table(cells := content.get(part)):
            content[part] = {
                family: {current_id(name): value for name, value in named.items()}
                for family, named in cells.items()
            }
    return content


def _problem(content: Any) -> str:
    """The first reason why this is not evidence; empty if it is."""
    if not isinstance(content, dict):
        return "not an object"
    for name in (*FACTS, "without", "details_without"):
        if name not in content:
            return f"{name!r} is missing"
    if ("with" in content) != ("details_with" in content):
        return "only one of 'with' and 'details_with' is there"
    known = {*FACTS, *PARTS, *_TEXTS, KERNELS}
    if strange := [name for name in content if name not in known]:
        return f"unknown key {strange[0]!r}"
    if not _is_kernels(content.get(KERNELS, {})):
        return f"{KERNELS!r} does not map packages to lists of kernels, {RAN} and {NOT_REACHED}"
    return _problem_of_facts(content) or _problem_of_cells(content)


def _problem_of_facts(content: Mapping[str, Any]) -> str:
    versions = content["versions"]
    if not _is_texts(versions):
        return "'versions' is not an object of strings"
    name, _, version = str(content["set"]).partition(" ")
    if name not in MODEL_PACKAGES.values() or versions.get(name) != version:
        return f"set {content['set']!r} is not a release in 'versions'"
    if "mlx" not in versions:
        return "'versions' has no mlx"
    for fact, choices in (("device", DEVICES), ("dtype", DTYPES)):
        if content[fact] not in tuple(choices):
            return f"{fact} {content[fact]!r} is not one of {', '.join(sorted(choices))}"
    return "" if isinstance(content["mlx_patches"], str) else "'mlx_patches' is not a string"


def _problem_of_cells(content: Mapping[str, Any]) -> str:
    for part in (one for one in PARTS if one in content):
        cells, details_ = content[part], content[f"details_{part}"]
        if not _is_table(cells) or not _is_table(details_):
            return f"{part!r} or its details do not map families to scenarios to strings"
        for family, named in cells.items():
            where = f"{part!r}, family {family!r}"
            for name, letter in named.items():
                if name not in (*SCENARIOS, BUILD):
                    return f"{where}: unknown scenario {name!r}"
                if letter not in LETTERS.values():
                    return f"{where}, {name}: unknown letter {letter!r}"
                if letter in DETAILED and name not in details_.get(family, {}):
                    return f"{where}, {name}: no detail of the failure"
    if not content["without"]:
        return "no family was measured"
    both = content.get("with", content["without"])
    if other := sorted(both.keys() ^ content["without"].keys()):
        return f"family {other[0]!r} was not measured both without and with the patches"
    return ""


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, str) for one in value.values())


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_texts, value.values()))


def _is_kernels(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(both, dict)
        and both.keys() == {RAN, NOT_REACHED}
        and all(isinstance(calls, list) for calls in both.values())
        and all(isinstance(call, str) for calls in both.values() for call in calls)
        for both in value.values()
    )
