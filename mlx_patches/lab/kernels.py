"""Folders for the CPU kernels that MLX compiles; no two processes share one at the same time.

MLX writes the source of a kernel to ``TMPDIR/mlx/VERSION/cpu`` and starts the compiler. Two
processes that compile the same kernel overwrite each other's file, and one of them raises "Failed
to compile function".
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ..activation.presence import is_ours_alone, lock

FOLDERS = 64
# What outlives a process: the lock, MLX's kernels, and folders such as this one's.
KEPT, OURS = ("lock", "mlx"), "mlx_patches-"


@contextmanager
def kernel_folder() -> Iterator[Path]:
    """Yield a folder for a process's ``TMPDIR``, locked until the context ends.

    The first free folder is reused, with the kernels in it; all else that is left there is removed.
    If none can be locked, the folder is temporary.
    """
    with ExitStack() as stack:
        place = _claim(stack)
        if place:
            _clean(place)
            stack.callback(_clean, place)
        yield place or Path(stack.enter_context(tempfile.TemporaryDirectory()))


def _clean(place: Path) -> None:
    for one in place.iterdir():
        if one.name not in KEPT and not one.name.startswith(OURS):
            shutil.rmtree(one, ignore_errors=True)
            with suppress(OSError):
                one.unlink()


def _claim(stack: ExitStack) -> Path | None:
    """Lock the first free folder through an open file; None if there is none."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    parent = Path(tempfile.gettempdir()) / f"mlx_patches-kernels-{user}"
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        if not is_ours_alone(parent):
            return None
        for number in range(FOLDERS):
            place = parent / str(number)
            place.mkdir(exist_ok=True)
            file = (place / "lock").open("w")
            if lock(file.fileno()):
                stack.enter_context(file)
                return place
            file.close()
    except OSError:
        pass
    return None
