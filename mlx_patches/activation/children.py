"""Starts child processes that measure and do not import from the working directory.

``python -m`` and ``python -c`` put the working directory first on the path. It may be the folder
of the measured model, whose files would then shadow the environment's packages. Entries of
``PYTHONPATH`` stay in effect.
"""

import os
import sys

from .settings import SWITCH


def module_command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", module, *arguments]


def child_environment() -> dict[str, str]:
    """The environment of a measuring process and its children: no automatic activation."""
    return {**os.environ, SWITCH: "0", "PYTHONSAFEPATH": "1"}
