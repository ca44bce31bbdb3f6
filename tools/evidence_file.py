"""Files of evidence, which are replaced whole and by one process at a time; and their tables."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    """Run a tool; a file that cannot be written, such as on a full disk, ends it with one line."""
    try:
        main()
    except OSError as error:
        why = f"{error.filename or FOLDER}: {error.strerror}; its content is as it was"
        raise SystemExit(f"{why}. Make room, and measure again") from None


def read(file: Path) -> Any:
    return json.loads(file.read_text()) if file.exists() else {}


def read_lines(file: Path) -> list[Any]:
    """The objects of a file that has one per line, such as rows of the lab."""
    return list(map(json.loads, file.read_text().splitlines()))


def load(folder: Path) -> list[Any]:
    """The files of a folder, those of a package by its versions."""

    def key(file: Path) -> tuple[str, list[int]]:
        return re.sub(r"\d+", "", file.name), [*map(int, re.findall(r"\d+", file.name))]

    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"), key=key)]


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a table in Markdown.

    There are no blanks around cells: the pages have a budget of words, and a bar is one.
    """
    lines = [f"|{'|'.join(map(str, row))}|" for row in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]


def save(file: Path, content: Any, before: Any = None) -> None:
    """Write a file, unless it is no longer as it was ``before`` it was measured."""
    with lock():
        if before is not None and read(file) != before:
            raise SystemExit(f"{file}: changed meanwhile; nothing was recorded, measure again")
        file.parent.mkdir(parents=True, exist_ok=True)
        write(file, json.dumps(content, indent=1) + "\n")
