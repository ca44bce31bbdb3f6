"""The tables of the command line, in a module of their own: other commands need no rich."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .core.outcome import NOT_NEEDED

if TYPE_CHECKING:
    from .auditing.audit import Audit

_STYLES = {
    "applied": "green",
    "pending": "green",
    "fixed-upstream": "dim",
    "not-affected": "dim",
    "absent": "dim",
    "green": "green",
    "n/a": "dim",
}


class _Console(Console):
    """A console that raises BrokenPipeError, which ``main`` handles, if its reader is gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def make_console() -> Console:
    """Standard output. Piped, it is for programs and logs: lines of up to 400 characters."""
    if not sys.stdout.isatty():
        return _Console(width=400, no_color=True)
    return _Console() if in_colour() else _Console(color_system=None)


def in_colour() -> bool:
    """Whether a terminal may be sent colours and bold type."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def make_table(*columns: str) -> Table:
    """An empty table, which folds cells that are too long."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def styled(word: str) -> Text:
    """A status or a verdict in its colour: red, unless it is known to be good."""
    return Text(word, style=_STYLES.get(word, "red"))


def print_targets(report: Audit, show_all: bool) -> None:
    """Print what ``audit -v`` adds: a model's scenarios or the families, and the targets."""
    console = make_console()
    console.print(Text(f"\nInstalled: {', '.join(map(str, report.distributions)) or 'nothing'}"))
    if report.model is not None:
        _print_model(console, report.model)
        _print_scenarios(console, report)
    shown = [o for o in report.outcomes if show_all or o.finding or o.status not in NOT_NEEDED]
    if shown:
        table = make_table("patch", "target", "status", "reason")
        for outcome in shown:
            status, origin = styled(str(outcome.status)), report.origins.get(outcome.patch)
            name = f"{outcome.patch} ({origin})" if origin else outcome.patch
            table.add_row(name, outcome.target, status, outcome.reason)
        console.print(table)
    hidden = len(report.outcomes) - len(shown)
    if hidden:
        console.print(Text(f"{hidden} more targets need nothing (--all shows them)", style="dim"))
    if report.model is None and report.verdicts:
        _print_families(console, report)


def _print_model(console: Console, model: Any) -> None:
    row = "its own entry" if model.known else "the default entry"
    rows = "; ".join(f"{name}: {', '.join(ids) or 'nothing'}" for name, ids in model.rows.items())
    console.print(Text(f"Model type {model.model_type}, {row}: {rows or 'not installed'}"))


def _print_scenarios(console: Console, report: Audit) -> None:
    here = report.here()
    for one in report.verdicts:
        if one.metal:
            where = f"Branches that only Metal takes, {one.release}: {', '.join(one.metal)}"
            console.print(Text(where))
        table = make_table(
            f"scenario, {one.release}", "as released", "with patches", "here", "needs"
        )
        for cell in one.cells:
            with_ = (
                "not measured"
                if len(cell.pair) == 1
                else "wrong"
                if cell.wrong_with_patches
                else "right"
            )
            words = [cell.severity if cell.wrong else "right", with_]
            words.append("wrong" if cell in one.wrong_here(here) else "right")
            needs = "not traced" if cell.needs is None and cell.wrong else ""
            table.add_row(cell.words, *words, ", ".join(cell.needs or ()) or needs)
        console.print(table)


def _print_families(console: Console, report: Audit) -> None:
    table = make_table("model family", "release", "verdict", "patches")
    for one in report.verdicts:
        if one.verdict != "right":
            ids = ", ".join(one.patches) if one.traced else "not traced: see --model"
            table.add_row(one.family, one.release, one.verdict, ids if one.wrong else one.note)
    console.print(table)
