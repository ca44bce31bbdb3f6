"""Fingerprints of the releases' files, by the hash of the file.

Released files are recognised by their bytes, so activation does not parse them. The table is
written by tools/known_files.py, sorted by hash; a file that is not in it is parsed.
"""

import functools
import hashlib
import json
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

from .files import read_packaged

TABLE = Path(__file__).parent / "known_files.txt"

# Qualified name to its fingerprint and the first line of each definition; None for a name that the
# file does not define.
Entry = dict[str, tuple[str, list[int]] | None]


@functools.cache
def entry_of(path: str) -> Entry:
    """The table's entry for a file; empty if the file belongs to no measured release."""
    try:
        own = digest(Path(path).read_bytes()).encode()
    except OSError:
        return {}
    lines = _lines()
    line = b"".join(lines[(start := bisect_left(lines, own)) : start + 1])
    entry: Entry = json.loads(line.partition(b" ")[2]) if line.startswith(own) else {}
    return entry


def has(path: str, prints: Mapping[str, str | None]) -> bool:
    """Whether measured releases have a file, or definitions of these names and fingerprints."""
    texts = (f'"{name}":["{value}"'.encode() for name, value in prints.items())
    return bool(entry_of(path)) or all(any(one in line for line in _lines()) for one in texts)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


@functools.cache
def _lines() -> list[bytes]:
    return read_packaged(TABLE).splitlines()
