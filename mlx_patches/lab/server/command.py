"""``mlx-patches lab --server`` and ``--url``: the options, the progress, the output."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from ...core.errors import MlxPatchesError
from ...core.files import writing
from ..report import progress
from ..runner import environment, setup_here
from . import table
from .client import Client
from .folder import save
from .measure import cells_of, cells_of_url, starting
from .oracle import Language
from .table import Cell
from .walks import Walker, parse
from .walks import show as show_line


def run(options: Any, mode: str) -> NoReturn:
    """Fill the matrix of a server, print it, and exit; ``options``: those of the lab."""
    command, url, out, evidence = options.server, options.url, options.out, options.evidence
    if sum(map(bool, (command, url, options.write_model))) > 1:
        raise click.UsageError(
            "--server starts a server, --url uses one that runs, --write-model starts none: give"
            " one of them"
        )
    if options.write_model:
        with writing(options.write_model):
            save(options.write_model, Language())
        sys.exit(0)
    if evidence and (url or options.scenarios):
        raise click.UsageError("--evidence needs --server and every parameter: omit the others")
    if options.walks or options.replay is not None:
        walk(options, mode)
    found: list[Cell] = []
    # The code and settings of a server that runs already are not known: it is measured again.
    setup = f"{command}, {environment()}, {setup_here()}" if command else ""
    for patched in [False] if url else modes_of(mode):
        known = {c.key: c for c in read(out, setup) if c.patched is patched}
        if url:
            base = check_url(url)
            make = cells_of_url(base, find_model(base), options.scenarios, known)
        else:
            make = cells_of(command or "", patched, options.scenarios, known)
        append(out, "")
        for cell in show_progress(make, "with" if patched else "without"):
            found.append(cell)
            if cell.key not in known:
                line = {"command": command or url, "setup": setup, **cell.as_dict()}
                append(out, json.dumps(line) + "\n")
    if evidence:
        with writing(evidence):
            table.save(evidence, table.evidence(found, command or "", environment()))
        click.echo(f"{evidence}: wrote evidence of {len(found)} cells", err=True)
    if options.as_json:
        click.echo(json.dumps(table.as_dict(found), indent=2))
    else:
        from ...auditing.tables import show

        show(*table.show(found))
    sys.exit(table.exit_code(found))


def walk(options: Any, mode: str) -> NoReturn:
    """Walk on a server, or replay one walk; print each red one, and exit."""
    if not options.server:
        raise click.UsageError("walks need --server: a red one may end the server")
    steps = None if options.replay is None else parse(options.replay)
    results: list[dict[str, Any]] = []
    for patched in modes_of(mode):
        count, reds = 0, []
        with starting(options.server, patched) as started:
            walker = Walker(started)
            walks = (
                walker.walk(options.walks or 0, options.seed)
                if steps is None
                else [(len(steps), walker.play(steps))]
            )
            for judged, red in walks:
                count += judged
                if red:
                    reds.append(red)
                    click.echo(str(red), err=options.as_json)
        word = "with" if patched else "without"
        click.echo(
            f"Walks {word} patches: {count} requests, {len(reds)} red walks", err=options.as_json
        )
        lines = [{"line": show_line(red.steps), "fault": red.fault} for red in reds]
        results.append({"patched": patched, "requests": count, "red": lines})
    if options.as_json:
        click.echo(json.dumps({"schema": 1, "walks": results}, indent=2))
    sys.exit(1 if results[-1]["red"] else 0)


def modes_of(mode: str) -> list[bool]:
    return {"patched": [True], "unpatched": [False]}.get(mode, [False, True])


def show_progress(cells: Iterator[tuple[Cell, int]], mode: str) -> Iterator[Cell]:
    """Show the progress and the time left on stderr."""
    with progress(None) as advance:
        for cell, total in cells:
            advance(f"{mode} patches: {cell.parameter}", total=total)
            yield cell


def append(out: Path | None, text: str) -> None:
    if out is not None:
        with writing(out), out.open("a") as file:
            file.write(text)


def read(out: Path | None, setup: str) -> list[Cell]:
    """The cells that a file of an interrupted run has for this command and installed code."""
    if out is None or not out.exists():
        return []
    try:
        lines = out.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MlxPatchesError(f"{out}: cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row: dict[str, Any] = json.loads(line)
            del row["command"]
            if row.pop("setup", "") == setup != "":
                found.append(Cell(**row))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise MlxPatchesError(
                f"{out}:{number}: no cell of a server's matrix: give --out another file"
            ) from None
    return found


def check_url(url: str) -> str:
    """The base address of a server."""
    parts = urlsplit(url)
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 80)
    except ValueError:
        known = False
    if not known:
        raise MlxPatchesError(f"--url {url}: expected an address such as http://127.0.0.1:8080")
    return url.rstrip("/").removesuffix("/v1")


def find_model(url: str) -> str:
    """The first folder that a server lists, else its first model: a server may list others too."""
    listed = Client(url, "", 10).get("/v1/models")
    try:
        ids = [str(one["id"]) for one in listed["data"]]
        return next(filter(os.path.isdir, ids), ids[0])
    except (LookupError, TypeError):
        why = "is it running? mlx_lm.server also needs a folder ~/.cache/huggingface/hub"
        raise MlxPatchesError(f"{url}: /v1/models lists no model: {why}") from None
