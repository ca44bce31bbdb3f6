"""Which local files may be loaded.

A request may name files below folders that the operator has listed. A host may load files that it
wrote itself from checked content.
"""

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from stat import S_ISREG

from ..._shared.refusals import Refused
from .limits import Limits

ROOTS = "MLX_PATCHES_MEDIA_ROOTS"
_OUTSIDE = f"it is not a file below a folder of {ROOTS}"
# The frames of one video are some hundred files.
_KEPT = 8192
# No file has a longer path (PATH_MAX); following links takes time for each folder in it.
_LONGEST = 4096
_lock = threading.Lock()
# The real paths of the newest files of the host, the oldest first.
_written: dict[str, None] = {}


def read_media_roots() -> list[Path]:
    """The folders whose files a request may name: ``MLX_PATCHES_MEDIA_ROOTS``."""
    named = os.environ.get(ROOTS, "").split(os.pathsep)
    return [Path(os.path.realpath(Path(one).expanduser())) for one in named if one.strip()]


def resolve_path(path: str, roots: Iterable[Path]) -> Path:
    """The real path, with every link followed, below one of the folders.

    Raises:
        Refused: the path is elsewhere; the message does not reveal whether it exists.
    """
    try:
        real = Path(follow_links(path))
    except (OSError, ValueError):  # a NUL, a loop of links
        raise Refused(_OUTSIDE) from None
    if not any(real != root and real.is_relative_to(root) for root in roots):
        raise Refused(_OUTSIDE)
    return real


def follow_links(path: str) -> str:
    if len(path) > _LONGEST:
        raise ValueError("the path is too long")
    return os.path.realpath(path)


def resolve_file(path: str, roots: Iterable[Path], limits: Limits) -> str:
    """The real path of a file that a request may name.

    Raises:
        Refused: it is not below one of the folders, not a regular file, or too large.
    """
    real = resolve_path(path, roots)
    try:
        found = real.stat()
    except (OSError, ValueError):
        raise Refused(_OUTSIDE) from None
    if not S_ISREG(found.st_mode):  # a pipe or a device may be endless
        raise Refused(_OUTSIDE)
    if found.st_size > limits.size:
        raise Refused("the file is too large")
    return str(real)


def admit(path: str) -> None:
    """Record a file that the host wrote from checked content, so that it may be loaded."""
    real = os.path.realpath(path)
    with _lock:
        _written.pop(real, None)
        _written[real] = None
        if len(_written) > _KEPT:
            del _written[next(iter(_written))]


def is_admitted(path: str) -> bool:
    """Whether a path is that of such a file."""
    try:
        return follow_links(path) in _written
    except (OSError, ValueError):
        return False
