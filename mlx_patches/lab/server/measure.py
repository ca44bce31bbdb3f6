"""Measures one server: writes the models, starts it, and fills its matrix."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ...core.errors import MlxPatchesError
from ..children import temporary_folder
from . import encoders, folder
from .client import CHAT, EMBEDDINGS, RERANK, Client
from .judges import Sent, judge_greedy
from .oracle import Language
from .parameters import ADAPTERS, make_request
from .process import Process, run
from .runner import Key, Lab
from .table import Cell

# The names in a command line: the served model for text or with images, and the other model.
MODEL, VISION, OTHER = "model", "vision", "other"
# The names of encoders: a command with one of them measures only these endpoints.
ENCODER_NAMES = {EMBEDDINGS: "encoder", RERANK: "reranker"}


@contextlib.contextmanager
def starting(command: str, patched: bool, known: Mapping[Key, Cell] | None = None) -> Iterator[Lab]:
    """Write the models, and start a server for measurements."""
    images = has(command, VISION)
    if not (has(command, "port") and (images or has(command, MODEL))):
        raise MlxPatchesError(f"--server: the command needs {{model}} and {{port}}: {command}")
    with temporary_folder() as temporary, contextlib.ExitStack() as stack:
        folders = {name: Path(temporary, name) for name in (VISION if images else MODEL, OTHER)}
        for name, path in folders.items():
            folder.save(path, Language(other=name == OTHER), images)
        for name, prefix in ADAPTERS.items():
            folder.save_adapter(folders[OTHER] / name, prefix)

        def start() -> Process:
            stack.close()
            return stack.enter_context(run(command, folders, patched, Path(temporary, "log")))

        yield Lab(start(), start, str(folders[OTHER]), patched, known, images)


def cells_of(
    command: str, patched: bool, only: Sequence[str] = (), known: Mapping[Key, Cell] | None = None
) -> Iterator[tuple[Cell, int]]:
    """The cells of a server that is started here, and their number."""
    if endpoints := [one for one, name in ENCODER_NAMES.items() if has(command, name)]:
        yield from cells_of_encoders(command, patched, endpoints, only, known or {})
        return
    with starting(command, patched, known) as lab:
        yield from lab.cells(only)


def cells_of_encoders(
    command: str,
    patched: bool,
    endpoints: Sequence[str],
    only: Sequence[str],
    known: Mapping[Key, Cell],
) -> Iterator[tuple[Cell, int]]:
    """The cells of the endpoints of encoders, and their number."""
    keys = encoders.list_cells(endpoints, only)
    if not has(command, "port"):
        raise MlxPatchesError(f"--server: the command needs {{port}}: {command}")
    with temporary_folder() as temporary:
        folders = {name: Path(temporary, name) for name in (MODEL, *ENCODER_NAMES.values())}
        folder.save(folders[MODEL], Language())
        for endpoint, name in ENCODER_NAMES.items():
            encoders.save(folders[name], endpoint)
        with run(command, folders, patched, Path(temporary, "log")) as process:
            client = Client(process.url, "")
            for key in keys:
                model = str(folders[ENCODER_NAMES[key[0]]])
                cell = known.get(key) or encoders.measure(client, model, *key)
                yield replace(cell, patched=patched), len(keys)


def has(command: str, name: str) -> bool:
    return f"{{{name}}}" in command


def cells_of_url(
    url: str, model: str, only: Sequence[str] = (), known: Mapping[Key, Cell] | None = None
) -> Iterator[tuple[Cell, int]]:
    """The cells of a running server."""
    lab = Lab(Process(url, model), None, known=known)
    request = make_request(tokens=8)
    answer = lab.place(CHAT).send(request)
    if answer.status == 0:
        raise MlxPatchesError(f"{url}: {answer.error}")
    if judge_greedy([answer], Sent(CHAT, lab.language, [request])):
        raise MlxPatchesError(
            f"{url} serves {model}, whose answers are not known: serve the folder that"
            " mlx-patches lab --write-model FOLDER writes"
        )
    yield from lab.cells(only)
