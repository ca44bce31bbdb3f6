"""The terminal and JSON output of a run of the lab."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..core.files import printable
from ..evidence.words import GREEN, NOT_APPLICABLE, RED
from .runner import Row, Task, by_family, exit_code, summary

STYLES = {RED: "red", GREEN: "green", NOT_APPLICABLE: "dim"}
Tell = Callable[[Task, list[Row]], None]


@contextlib.contextmanager
def progress(total: int) -> Iterator[Tell]:
    """Show a progress bar on stderr, if that is a terminal; yields the function to advance it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal)
    with bar:
        shown = bar.add_task("lab", total=total)

        def tell(task: Task, rows: list[Row]) -> None:
            bar.update(shown, advance=1, description=str(task.family))

        yield tell


@contextlib.contextmanager
def steps() -> Iterator[Callable[[str], None]]:
    """Show the current step on stderr, if that is a terminal; yields the function to set it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(text)


def as_dict(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON output."""
    return {
        "schema": 1,
        "summary": summary(rows),
        "cells": [row.as_dict() for row in rows],
        "exit_code": exit_code(rows),
    }


def show(console: Console, rows: Sequence[Row]) -> None:
    """Print the families that are not green, then the number of families by verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (
        "family",
        "without",
        "with",
        "scenarios not green: detail of the first",
    ):
        table.add_column(column, overflow="fold")
    verdicts = by_family(rows)
    for family in dict.fromkeys(family for family, _ in verdicts):
        both = [verdicts.get((family, patched), "") for patched in (False, True)]
        if any(verdict not in (GREEN, NOT_APPLICABLE, "") for verdict in both):
            own = [row for row in rows if row.family == family]
            table.add_row(family, *map(_styled, both), _reason(own))
    if table.row_count:
        console.print(table)
    _totals(console, rows)


def show_reference(console: Console, rows: Sequence[Row]) -> None:
    """Print each config's verdict, then the number of families by verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("family", "config", "without", "with"):
        table.add_column(column, overflow="fold")
    said: dict[tuple[str, str], dict[bool, Row]] = {}
    for row in rows:
        said.setdefault((row.family, row.scenario.partition(":")[2]), {})[row.patched] = row
    for (family, config), both in sorted(said.items()):
        if config or any(row.verdict == NOT_APPLICABLE for row in both.values()):
            cells = [both.get(patched) for patched in (False, True)]
            table.add_row(family, config, *[_told(row) if row else Text() for row in cells])
    console.print(table)
    _totals(console, rows)


def _told(row: Row) -> Text:
    text = f"n/a: {row.detail}" if row.verdict == NOT_APPLICABLE else row.detail
    return Text(printable(text), style=STYLES.get(row.verdict, "yellow"))


def _totals(console: Console, rows: Sequence[Row]) -> None:
    for mode, counts in summary(rows).items():
        said = ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n) or "nothing ran"
        console.print(Text(f"Families {mode} the patches: {said}"))


def _reason(rows: Sequence[Row]) -> str:
    """The scenarios that are not green, and why the first is not; the patched run's, if any."""
    bad = [row for row in rows if row.verdict not in (GREEN, NOT_APPLICABLE)]
    bad = [row for row in bad if row.patched] or bad
    names = ", ".join(dict.fromkeys(row.scenario for row in bad))
    return printable(f"{names}: {bad[0].detail}") if bad else ""


def _styled(verdict: str) -> Text:
    return Text(verdict, style=STYLES.get(verdict, "yellow"))
