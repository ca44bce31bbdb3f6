"""Files of evidence, which are replaced whole and by one process at a time; and their tables."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_patches.core.errors import MlxPatchesError
from mlx_patches.core.files import write

FOLDER = Path(__file__).parent / "evidence"


@contextmanager
def lock() -> Iterator[None]:
    """Hold the lock on all evidence, while a file is read, changed and written."""
    folder = os.open(FOLDER, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def run(main: Callable[[], None]) -> None:
    """Run a tool; a file that cannot be read or written ends it with one line."""
    try:
        main()
    except MlxPatchesError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit("interrupted; run it again to measure the rest") from None
    except OSError as error:
        why = f"{error.filename or FOLDER}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why += "; its content is as it was. Make room, and measure again"
        raise SystemExit(why) from None


def read(file: Path) -> Any:
    """The content of a JSON or TOML file; empty if there is none."""
    parse = tomllib.loads if file.suffix == ".toml" else json.loads
    try:
        return parse(file.read_text()) if file.exists() else {}
    except ValueError as error:
        raise SystemExit(f"{file}: {error}; correct the file, or restore it with git") from None


def read_lines(file: Path) -> list[Any]:
    """The objects of a file that has one per line, such as rows of the lab."""
    found = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise SystemExit(f"{file}: line {number}: {error}; measure again") from None
    return found


def load(folder: Path) -> list[Any]:
    """The files of a folder, those of a package by its versions."""

    def key(file: Path) -> tuple[str, list[int]]:
        return re.sub(r"\d+", "", file.name), [*map(int, re.findall(r"\d+", file.name))]

    return [read(file) for file in sorted(folder.glob("*.json"), key=key)]


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a table in Markdown.

    There are no blanks around cells: the pages have a budget of words, and a bar is one.
    """
    lines = [f"|{'|'.join(map(str, row))}|" for row in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def save(file: Path, content: Any, before: Any = None) -> None:
    """Write a file, unless it changed since it was read as ``before``."""
    with lock():
        if before is not None and read(file) != before:
            raise SystemExit(f"{file}: changed meanwhile; nothing was recorded, measure again")
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, json.dumps(content, indent=1) + "\n")
