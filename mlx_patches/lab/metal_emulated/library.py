"""Compiles a kernel's C++ and caches the result across processes."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ...activation.presence import is_ours_alone
from .journal import NotRun

HERE = Path(__file__).parent
SHIM = (HERE / "shim.h").read_text()
MACHINES = ("x86_64", "aarch64")
FLAGS = (
    *("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden", "-fno-exceptions"),
    # Metal has no double, and its pointers may read memory as another type.
    *("-fno-strict-aliasing", "-fsingle-precision-constant", "-ffp-contract=off"),
)


def compiler() -> str | None:
    return next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)


def missing() -> str:
    """Why kernels cannot be emulated here, in one line; empty if they can."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        here = f"{platform.system()} on {platform.machine()}"
        return f"metal-emulated needs Linux on {' or '.join(MACHINES)}, not {here}"
    if compiler() is None:
        return "metal-emulated compiles kernels as C++, and no compiler is here: install g++"
    return ""


def load(text: str, name: str) -> Any:
    if reason := missing():
        raise NotRun(reason)
    command = [str(compiler()), *FLAGS]
    if "clang" not in _version(command[0]):
        # Several libraries are loaded at once; each needs a separate copy of the shim's variables.
        command.append("-fno-gnu-unique")
    key = hashlib.sha256("\0".join([SHIM, *command, text]).encode()).hexdigest()[:32]
    library = _folder() / f"{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            source, fresh = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
            source.write_text(text)
            done = subprocess.run(
                [*command, f"-I{HERE}", str(source), "-o", str(fresh)],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise NotRun(f"kernel {name} did not compile: {_first_error(done.stderr)}")
            fresh.rename(library)
    return ctypes.CDLL(str(library)).emulated


def _first_error(output: str) -> str:
    errors = [line.partition("error: ")[2] for line in output.splitlines() if "error: " in line]
    return (errors or output.strip().splitlines() or ["the compiler printed nothing"])[0]


@functools.cache
def _version(command: str) -> str:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


@functools.cache
def _folder() -> Path:
    """A folder for compiled kernels that no other user can write to."""
    place = Path(tempfile.gettempdir()) / f"mlx_patches-metal-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    return place if is_ours_alone(place) else Path(tempfile.mkdtemp())
