"""Reads untrusted files with a size limit, and packaged files; quotes text for safe printing."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import MlxPatchesError

# How many characters of a file a message quotes.
MAX_QUOTED = 200


def read(path: Path, limit: int, what: str) -> bytes:
    """Return a file's bytes.

    Args:
        path: a regular file. Devices and pipes are rejected, since reading them may hang.
        limit: in bytes. At most one more is read, even if the file grows meanwhile.
        what: what the file should be (``a config``), for the message.

    Raises:
        OSError: it cannot be read.
        MlxPatchesError: it is larger than ``limit``, or not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise MlxPatchesError(f"{path}: cannot be read: not a regular file")
    with open(path, "rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise MlxPatchesError(f"{path}: larger than {limit} bytes; not {what}")
    return content


def write(path: Path, text: str) -> None:
    """Replace a file atomically: who reads it meanwhile gets the old or the new one.

    A link at the path is replaced; its target is unchanged.
    """
    import tempfile  # not at start-up

    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name the file or folder in an error of writing: a full disk's has no name."""
    try:
        yield
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be written ({error.strerror})") from None


def read_packaged(path: Path) -> bytes:
    """The content of a file of this package, which may be in a zip."""
    loader: Any = __spec__.loader
    content: bytes = loader.get_data(os.fspath(path))
    return content


def quote(text: object) -> str:
    """Text from a file, for a message: one printable line, cut after ``MAX_QUOTED`` characters."""
    line = printable(str(text)[: MAX_QUOTED + 1])
    return line if len(line) <= MAX_QUOTED else f"{line[:MAX_QUOTED]}..."


def printable(text: object) -> str:
    """Text as one line without control characters, which could control a terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def shell_word(text: object) -> str:
    """Text as one word of a shell's command: one printable line that stands for every character."""
    import shlex  # not at start-up

    if str(text).isprintable():
        return shlex.quote(str(text))

    def escape(c: str) -> str:
        if c.isprintable() and c not in "'\\!":
            return c
        return "".join(f"\\{byte:03o}" for byte in os.fsencode(c))

    return f"$'{''.join(map(escape, str(text)))}'"
