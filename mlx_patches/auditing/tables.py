"""The tables of the command line, in a separate module: other commands do not need rich."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .colour import in_colour

if TYPE_CHECKING:
    from .screen import Part

# The columns of statuses and results, and the words in them that are not red.
_COLOURED = {"status", "here", "without", "with"}
_STYLES = {
    **dict.fromkeys(("applied", "pending", "green", "right"), "green"),
    **dict.fromkeys(("fixed-upstream", "not-affected", "absent", "n/a"), "dim"),
    **dict.fromkeys(("insensitive", "not-built", "not-emulated", "not-run"), "yellow"),
}


class _Console(Console):
    """A console that raises BrokenPipeError if its reader is gone; ``main`` handles it."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def make_console() -> Console:
    """Standard output. If piped, to programs and logs, lines may have 400 characters."""
    if not sys.stdout.isatty():
        return _Console(width=400, no_color=True)
    return _Console() if in_colour() else _Console(color_system=None)


def show(*parts: Part, console: Console | None = None) -> None:
    console = console or make_console()
    for part in parts:
        if isinstance(part, str):
            console.print(Text(part))
            continue
        heads, rows = part
        filled = [number for number, _ in enumerate(heads) if any(row[number] for row in rows)]
        rows = [[row[number] for number in filled or range(len(heads))] for row in rows]
        heads = [heads[number] for number in filled or range(len(heads))]
        columns = [[head, *(row[number] for row in rows)] for number, head in enumerate(heads)]
        widths = [max(map(len, column)) for column in columns]
        widest = widths.index(max(widths))  # only this one is wrapped, and between words
        word = max(map(len, " ".join(columns[widest]).split()), default=0)
        if sum(widths) - widths[widest] + word + 2 * len(widths) > console.width:
            for row in rows:
                for head, cell in zip(heads, row, strict=True):
                    if cell:
                        console.print(Text(f"{head}: ").append(cell, _style(head, cell)))
                console.print()
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, head in enumerate(heads):
            table.add_column(head, overflow="fold", no_wrap=number != widest)
        for row in rows:
            cells = zip(heads, row, strict=True)
            table.add_row(*(Text(cell, style=_style(head, cell)) for head, cell in cells))
        console.print(table)


def _style(head: str, cell: str) -> str:
    return _STYLES.get(cell, "red") if head in _COLOURED and cell else ""
