"""The results of a server's matrix: rows, counts, the terminal's table, and the evidence."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.files import printable
from ...evidence.requests import ABSENT, BAD, RIGHT, VERDICTS


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of one parameter in one context at one endpoint."""

    endpoint: str
    parameter: str
    context: str
    verdict: str
    detail: str = ""
    patched: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        return self.endpoint, self.parameter, self.context

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one parameter with the same verdict, which is not right."""

    endpoint: str
    parameter: str
    verdict: str
    contexts: tuple[str, ...]
    detail: str

    def __str__(self) -> str:
        where = f" ({', '.join(self.contexts)})" if any(self.contexts) else ""
        return f"{self.verdict}{where}: {self.detail}"


def rows(cells: Iterable[Cell]) -> list[Row]:
    """One row for each parameter and verdict that is not right, with the first detail.

    A verdict of a whole parameter has no contexts.
    """
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    totals: Counter[tuple[str, str]] = Counter()
    for cell in cells:
        totals[cell.endpoint, cell.parameter] += 1
        if cell.verdict != RIGHT:
            groups.setdefault((cell.endpoint, cell.parameter, cell.verdict), []).append(cell)
    return [
        Row(
            *key,
            () if len(found) == totals[key[:2]] else tuple(one.context for one in found),
            found[0].detail,
        )
        for key, found in groups.items()
    ]


def count(cells: Iterable[Cell]) -> dict[str, int]:
    found = Counter(cell.verdict for cell in cells)
    return {verdict: found[verdict] for verdict in VERDICTS}


def exit_code(cells: Sequence[Cell]) -> int:
    """The patched run decides, if any: 1 if a cell is wrong or ignored, 2 if nothing ran."""
    last = [cell for cell in cells if cell.patched] or cells
    verdicts = {cell.verdict for cell in last}
    return 1 if verdicts & set(BAD) else 0 if RIGHT in verdicts else 2


def show(cells: Sequence[Cell]) -> Iterator[Any]:
    """A table of the parameters that are not right everywhere, then the counts."""
    modes = [mode for mode in (False, True) if any(cell.patched is mode for cell in cells)]
    by_mode = {mode: [cell for cell in cells if cell.patched is mode] for mode in modes}
    found: dict[tuple[str, str], dict[bool, list[Row]]] = {}
    for mode, mine in by_mode.items():
        for row in rows(mine):
            if row.verdict != ABSENT:
                key = (row.endpoint, row.parameter)
                found.setdefault(key, {}).setdefault(mode, []).append(row)
    heads = [f"{'with' if mode else 'without'} patches" for mode in modes]
    if found:
        yield (
            ("endpoint", "parameter", *heads),
            [
                (
                    *key,
                    *(printable("; ".join(map(str, one.get(mode, ()))) or RIGHT) for mode in modes),
                )
                for key, one in found.items()
            ],
        )
    for mode, head in zip(modes, heads, strict=True):
        counts = ", ".join(f"{n} {word}" for word, n in count(by_mode[mode]).items() if n)
        yield f"Cells {head}: {counts or 'nothing ran'}"


def as_dict(cells: Sequence[Cell]) -> dict[str, Any]:
    modes = {"without": False, "with": True}
    return {
        "schema": 1,
        "summary": {k: count(c for c in cells if c.patched is v) for k, v in modes.items()},
        "cells": [cell.as_dict() for cell in cells],
        "exit_code": exit_code(cells),
    }


def evidence(cells: Sequence[Cell], command: str, environment: str) -> dict[str, Any]:
    """One server's part of an evidence file."""
    part: dict[str, Any] = {"command": command, "environment": environment}
    for name, mode in (("without", False), ("with", True)):
        if mine := [cell for cell in cells if cell.patched is mode]:
            part[name] = {
                "counts": count(mine),
                "rows": [
                    [r.endpoint, r.parameter, r.verdict, list(r.contexts), printable(r.detail)]
                    for r in rows(mine)
                ],
            }
    return part


def save(file: Path, part: dict[str, Any]) -> None:
    """Add a server's part to an evidence file, in place of one of the same command."""
    parts = json.loads(file.read_text()) if file.exists() else []
    parts = sorted(
        [*(one for one in parts if one["command"] != part["command"]), part],
        key=lambda one: one["command"],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(_dump(parts) + "\n")


def _dump(parts: list[dict[str, Any]]) -> str:
    """JSON with one row per line."""
    text = json.dumps(parts, indent=1)
    row = r"\[\s*(\"[^\[\]]*?)\[\s*([^\[\]]*?)\s*\],\s*(\"[^\n]*)\s*\]"
    return re.sub(row, lambda found: json.dumps(json.loads(found[0])), text)
