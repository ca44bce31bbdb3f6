"""Starts child processes that measure and do not import from the working directory.

``python -m`` and ``python -c`` put the working directory first on the path. It may be the folder
of the measured model, whose files would then shadow the environment's packages. Entries of
``PYTHONPATH`` stay in effect.
"""

import os
import sys

from ..core.errors import MlxPatchesError
from .settings import SWITCH


def find_python() -> str:
    """This environment's Python: in a program that embeds it, ``sys.executable`` is another."""
    own = sys.executable or ""
    beside = (os.path.join(sys.prefix, "bin", name) for name in ("python3", "python"))
    for path in (own if "python" in os.path.basename(own).lower() else "", *beside):
        if os.access(path, os.X_OK):
            return path
    raise MlxPatchesError(f"no Python in {sys.prefix}: run mlx-patches in the environment")


def module_command(module: str, *arguments: str) -> list[str]:
    return [find_python(), "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of a measuring process and its children: no automatic activation."""
    return {**os.environ, SWITCH: "0", "PYTHONSAFEPATH": "1"}
