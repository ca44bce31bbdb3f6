"""Activation by a ``.pth`` file: waits for the first MLX package, then applies.

Standard library only, and little of it: it runs at the start of every process of an enabled
environment, most of which never import MLX.
"""

from __future__ import annotations

import os
import sys

from ..core.packages import COMMANDS, DISTRIBUTIONS, FRONTS
from . import started
from .settings import SAFE, SWITCH, junk, strict, switch, warn_of_junk

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_watcher = None
_stopped = False


def start(
    host: str = "", scripts: Sequence[str] = (), modules: Sequence[str] = (), profile: str = SAFE
) -> None:
    """Wait for a package that has patches.

    Args:
        host: if given, only processes of this host and their children are patched.
        modules: the top-level packages that ``python -m`` starts it from.
        profile: the profile to apply, unless ``MLX_PATCHES_PROFILE`` names one.
    """
    global _watcher
    wanted = switch()
    started.host, started.profile = host, profile
    if _watcher is not None:
        return
    if wanted is False:
        _warn_of_junk()
        return
    if host and not wanted:
        if not starts(sys.orig_argv, scripts, modules):
            return
        os.environ[SWITCH] = "1"  # its worker processes have different command lines
    # If MLX_PATCHES is set, ``run`` or a host has logged it, or the user set it.
    started.announces = wanted is None and starts(sys.orig_argv, COMMANDS, [*DISTRIBUTIONS])
    from .import_hook import Watcher

    # These include hosts: a host imports some of its modules before MLX.
    watched = [*DISTRIBUTIONS]
    if starts(sys.orig_argv, [*FRONTS], [*FRONTS.values()]):
        watched.append("starlette")  # this process checks the requests
    _watcher = Watcher(watched, lambda module: None if _stopped else _apply(), strict())
    _watcher.install()
    if any(name in sys.modules for name in watched):
        _apply()


def starts(argv: Sequence[str], scripts: Sequence[str], modules: Sequence[str]) -> bool:
    """Whether a Python command line runs one of these scripts or a module of these packages."""
    option, name = started.program(argv)
    if option == "-m":
        return name.partition(".")[0] in modules
    return not option and os.path.basename(name).removesuffix(".exe") in scripts


def active() -> bool:
    """Whether this process waits, or has waited, for a package to patch."""
    return _watcher is not None


def stop() -> None:
    global _stopped
    _stopped = True
    if _watcher is not None:
        _watcher.uninstall()


def _warn_of_junk() -> None:
    """Warn in processes that import MLX if ``MLX_PATCHES`` has an unknown value."""
    if not junk():
        return
    from .import_hook import Watcher

    def warn(module: ModuleType) -> None:
        watcher.uninstall()
        warn_of_junk()

    watcher = Watcher(DISTRIBUTIONS, warn)
    watcher.install()


def _apply() -> None:
    assert _watcher is not None
    # Some harnesses restore a sys.meta_path that has this watcher and lacks the session's.
    again = f"{__package__.partition('.')[0]}.auto" in sys.modules
    try:
        from .. import auto  # applies on import, raises only if strict

        if again:
            auto.activate()
    except Exception:
        if not _watcher.strict:  # if strict, it stays: the next import raises again
            _watcher.uninstall()
        raise
    _watcher.uninstall()
