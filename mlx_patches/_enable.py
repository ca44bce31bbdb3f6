"""Puts the ``.pth`` file that activates the patches into an environment, and removes it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from ._errors import MlxPatchesError

NAME = "mlx_patches_boot.pth"
# One line that site.py executes. An orphan, left after the package was removed, stays silent.
LINE = (
    "import importlib.util as u; "
    "u.find_spec('mlx_patches') and __import__('mlx_patches._boot')._boot.start()\n"
)


def enable() -> Path:
    """Write the file; returns its path.

    Raises:
        MlxPatchesError: site-packages cannot be written.
    """
    path = _path()
    try:
        path.write_text(LINE)
    except OSError as error:
        raise MlxPatchesError(
            f"{path}: cannot be written ({error.strerror}); use mlx_patches.apply() instead"
        ) from None
    return path


def disable() -> Path | None:
    """Remove the file; returns its path, None where there was none.

    Raises:
        MlxPatchesError: it cannot be removed.
    """
    path = _path()
    try:
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MlxPatchesError(f"{path}: cannot be removed ({error.strerror})") from None
    return path


def _path() -> Path:
    return Path(sysconfig.get_paths()["purelib"]) / NAME
