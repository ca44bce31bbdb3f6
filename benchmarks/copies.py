"""Copies of the installed releases in one process, of which one has the patches.

Python adapts its bytecode to the classes that it meets, so a benchmark that applies and removes
patches between two runs must warm up after each change. With copies nothing changes: single
runs take turns, and a machine whose speed drifts is as slow for the one as for the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from mlx_patches.core.packages import MODELS


class Copy:
    """A copy of the releases' modules; empty until something is imported while it is active."""

    def __init__(self) -> None:
        self.modules: dict[str, ModuleType] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let ``sys.modules`` hold this copy inside the block, and what it held after it."""
        others = take_modules()
        sys.modules.update(self.modules)
        try:
            yield
        finally:
            self.modules = take_modules()
            sys.modules.update(others)


def take_modules() -> dict[str, ModuleType]:
    """Remove the releases' modules from ``sys.modules``, and return them by name."""
    names = [name for name in sys.modules if name.partition(".")[0] in MODELS]
    return {name: sys.modules.pop(name) for name in names}
