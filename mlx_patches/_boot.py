"""Activation by a ``.pth`` file: waits for the first MLX package, then applies.

Standard library only, and little of it: this runs at the start of every process of an
enabled environment, most of which never import MLX.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

PACKAGES = ("mlx_lm", "mlx_vlm")
OFF = {"0", "false", "no", "off"}

_watcher = None


def start() -> None:
    """Wait for a package that has patches; ``MLX_PATCHES=0`` in the environment forbids it."""
    global _watcher
    if _watcher is not None or os.environ.get("MLX_PATCHES", "").lower() in OFF:
        return
    from ._import_hooks import Watcher

    _watcher = Watcher(PACKAGES, _first_import)
    _watcher.install()
    if any(name in sys.modules for name in PACKAGES):
        _apply()


def active() -> bool:
    """True where this process waits, or has waited, for a package to patch."""
    return _watcher is not None


def _first_import(module: ModuleType) -> None:
    _apply()


def _apply() -> None:
    assert _watcher is not None
    _watcher.uninstall()
    from . import auto  # noqa: F401  (applies on import, never raises)
