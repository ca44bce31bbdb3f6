"""The result of a probe, and whose fault an error is: the release's, or the environment's."""

import errno
import importlib
import traceback
from dataclasses import dataclass
from typing import Any

from ..core.packages import DISTRIBUTIONS

FULL = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM)
FILES = (errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True, slots=True)
class Result:
    """A probe's result. ``figure`` is the measured number, None if the probe measures none."""

    red: bool
    detail: str
    figure: float | None = None


class NotApplicable(Exception):
    """The release lacks the code that is tested; the message names that code."""


class BrokenEnvironment(Exception):
    """The environment, not the release, kept a test from running; the message has the reason."""


def is_absent(error: BaseException, package: str) -> bool:
    """Whether an error is an import of a module that this package, or another of ours, lacks."""
    return isinstance(error, ModuleNotFoundError) and _is_ours(error, package)


def import_optional(name: str) -> Any:
    """A module, or None if its package lacks it; ImportError if it lacks a dependency."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if is_absent(error, name.partition(".")[0]):
            return None
        raise


def find_fault(error: BaseException, package: str = "") -> str:
    """Why an error, or its cause, is the environment's and not the package's; empty if it is not.

    A dependency is missing or broken, memory, disk or a limit is full, MLX cannot compile its
    kernels, or a package cannot be imported.
    """
    one: BaseException | None = error
    while one is not None:
        if isinstance(one, BrokenEnvironment):
            return str(one)
        if isinstance(one, ImportError) and not _is_ours(one, package):
            return f"{one}: install it"
        is_full = getattr(one, "errno", 0) in FULL or "No space left" in str(one)
        if isinstance(one, MemoryError) or is_full:
            return f"no memory or disk space is left: {one}"
        # mlx-lm's import raises this below 4,096 files.
        if getattr(one, "errno", 0) in FILES or "raise maximum limit" in str(one):
            return f"{one}: raise the limit of open files, as with ulimit -Hn 4096"
        if "start new thread" in str(one):
            return f"{one}: raise the limit of processes (ulimit -u)"
        if "Compile::eval_cpu" in str(one):
            return "MLX cannot compile its kernels: its C++ compiler fails"
        # Without Metal some modules of mlx-vlm cannot be imported, which is no fault.
        if (name := _find_importing(one)) and "No Metal back-end" not in str(one):
            return f"{name} cannot be imported here: {type(one).__name__}: {one}"
        one = one.__cause__
    return ""


def _find_importing(error: BaseException) -> str:
    """The package whose import raised an error; empty if none did."""
    names = [
        str(frame.f_globals.get("__name__"))
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "<module>"
    ]
    return next((name for name in names if name in DISTRIBUTIONS), "")


def _is_ours(error: ImportError, package: str) -> bool:
    top = (error.name or "").partition(".")[0]
    return bool(top) and top in (package, *DISTRIBUTIONS)
