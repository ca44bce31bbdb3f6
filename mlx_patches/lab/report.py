"""The terminal and JSON output of a run of the lab."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..core.files import printable
from ..evidence.words import DEVICES, GREEN, METAL_EMULATED, NOT_APPLICABLE
from .record import NOT_REACHED, RAN, kernels
from .runner import Row, Task, by_family, exit_code, summary
from .walks.runner import Walked

Advance = Callable[..., None]


@contextlib.contextmanager
def progress(total: int | None, most: str = "", limit: float = math.inf) -> Iterator[Advance]:
    """Show progress on stderr: a bar on a terminal, else a line per finished step; -q: nothing.

    Yields ``advance(step)``, to be called with the name or the task of each finished step, and with
    the total if it was not known. ``most`` is shown first; all steps end in ``limit`` seconds.
    """
    console, context = Console(stderr=True), click.get_current_context(silent=True)
    quiet = context is not None and context.meta.get("quiet", False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
    piped = not (quiet or console.is_terminal)
    began, done = time.monotonic(), 0
    if piped and most:
        click.echo(f"{total} step{'' if total == 1 else 's'}, {most}", err=True)
    with Progress(*columns, *times, console=console, disable=quiet or piped) as bar:
        shown = bar.add_task(most or "starting", total=total)

        def advance(step: Any, rows: object = (), total: int | None = total) -> None:
            nonlocal done
            done += 1
            name = step
            if isinstance(step, Task):
                name = f"{step.family}, {'with' if step.patched else 'without'} the patches"
            bar.update(shown, advance=1, total=total, description=name)
            if piped and total:
                took = time.monotonic() - began
                left = max(min(took / done * (total - done), limit - took), 0)
                click.echo(f"[{done}/{total}] {name}: {took:.0f} s, {left:.0f} s left", err=True)

        yield advance


def as_dict(rows: Sequence[Row], walked: Sequence[Walked] = ()) -> dict[str, Any]:
    """The JSON output; ``rows`` include the walks, one cell per family."""
    return {
        "schema": 1,
        "summary": summary(rows),
        "cells": [row.as_dict() for row in rows],
        **({"walks": [asdict(one) for one in walked]} if walked else {}),
        **({"kernels": found} if (found := kernels(rows)) else {}),
        "exit_code": exit_code(rows),
    }


def show_rows(rows: Sequence[Row]) -> Iterator[Any]:
    """A table of the families that are not green, then the number of families by result."""
    results = by_family(rows)
    bad = []
    for family in dict.fromkeys(family for family, _ in results):
        both = [results.get((family, patched), "") for patched in (False, True)]
        if any(result not in (GREEN, NOT_APPLICABLE, "") for result in both):
            bad.append((family, *both, _reason([row for row in rows if row.family == family])))
    if bad:
        yield (
            ("family", "without", "with", "scenarios that are not green: detail of the first"),
            bad,
        )
    yield from _totals(rows)
    for package, found in kernels(rows).items():
        ran, left = found[RAN], found[NOT_REACHED]
        yield f"{DEVICES[METAL_EMULATED]}:"
        yield f"  {package}: {len(ran)} of {len(ran) + len(left)} kernels ran"
        yield from (f"  not reached: {one}" for one in left)


def show_reference(rows: Sequence[Row]) -> Iterator[Any]:
    """A table of each config's result, then the number of families by result."""
    found: dict[tuple[str, str], dict[bool, Row]] = {}
    for row in rows:
        found.setdefault((row.family, row.scenario.partition(":")[2]), {})[row.patched] = row
    yield (
        # Not the headings of results: these cells are sentences, and ``equal`` is not a red one.
        ("family", "config", "without patches", "with patches"),
        [
            (family, config, *(_detail(both.get(patched)) for patched in (False, True)))
            for (family, config), both in sorted(found.items())
            if config or any(row.verdict == NOT_APPLICABLE for row in both.values())
        ],
    )
    yield from _totals(rows)


def _detail(row: Row | None) -> str:
    if row is None:
        return ""
    return printable(f"n/a: {row.detail}" if row.verdict == NOT_APPLICABLE else row.detail)


def _totals(rows: Sequence[Row]) -> Iterator[str]:
    for mode, counts in summary(rows).items():
        found = ", ".join(f"{n} {result}" for result, n in counts.items() if n) or "nothing ran"
        yield f"Families {mode} the patches: {found}"


def _reason(rows: Sequence[Row]) -> str:
    """The scenarios that are not green, and the first one's detail; the patched run's, if any."""
    bad = [row for row in rows if row.verdict not in (GREEN, NOT_APPLICABLE)]
    bad = [row for row in bad if row.patched] or bad
    names = ", ".join(dict.fromkeys(row.scenario for row in bad))
    return printable(f"{names}: {bad[0].detail}") if bad else ""
