"""Reads files that somebody else wrote: bounded, and quoted in a way that is safe to print."""

from __future__ import annotations

import stat
from pathlib import Path

from .errors import MlxPatchesError

# Of what a message quotes.
MAX_QUOTED = 200


def read(path: Path, limit: int, what: str) -> bytes:
    """Return a file's bytes.

    Args:
        path: a regular file; a device or a pipe may never end.
        limit: in bytes. No more than that is read, however the file grows.
        what: it should be, for the message.

    Raises:
        OSError: it cannot be read.
        MlxPatchesError: it is larger, or no regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise MlxPatchesError(f"{path}: cannot be read: not a regular file")
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise MlxPatchesError(f"{path}: larger than {limit} bytes; not {what}")
    return content


def quoted(text: object) -> str:
    """A piece of a file for a message: one line, printable, not long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text)[: MAX_QUOTED + 1])
    return line if len(line) <= MAX_QUOTED else f"{line[:MAX_QUOTED]}..."
