"""``mlx-patches run -- COMMAND``: starts a host with the patches, without ``enable``.

The command's own interpreter starts with our ``sitecustomize`` first on its path, which then runs
the ``sitecustomize`` that it shadows. Child processes inherit the path.
"""

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import MlxPatchesError
from ..core.files import quote
from . import settings
from .profiles import choose
from .settings import SAFE, SWITCH

# The folder that holds sitecustomize.py.
LAUNCH = Path(__file__).parent / "launch"
# Options that make an interpreter ignore PYTHONPATH.
ISOLATED = ("E", "I")
# The shell expression by which a relocatable script finds its own folder.
BESIDE = '"$(dirname -- "$(realpath -- "$0")")"/'
ISOLATED_BOOT = (
    "import sys, runpy; from mlx_patches.activation.boot import start; start(); "
    "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line, the environment variables that it adds, and a warning for the user."""

    command: tuple[str, ...]
    variables: dict[str, str]
    warning: str = ""


def launch(command: Sequence[str], profile: str = "") -> Launch:
    """Prepare a command that runs with the patches of a profile, by default the usual one."""
    profile = profile or settings.profile() or SAFE
    choose(profile)
    # First the commands of our own environment, which may not be activated.
    beside = os.path.dirname(sys.executable)
    found = shutil.which(command[0], path=beside) or shutil.which(command[0])
    if found is None:
        name = quote(command[0]) or "''"
        raise MlxPatchesError(f"{name}: no such command on PATH, or it is not executable")
    if is_python(Path(found)):
        # The interpreter's own options precede the script or module.
        ends = ("-c", "-m", "-")
        own = itertools.takewhile(lambda a: a[:1] == "-" and a not in ends, command[1:])
        options = list(filter(is_short, own))
        if any(flag in option for option in options for flag in (*ISOLATED, "S")):
            raise MlxPatchesError(
                f"python {' '.join(options)} ignores what run sets up; omit the option, or use"
                " mlx-patches enable"
            )
        _require_package([found])
        return Launch((found, *command[1:]), _variables(profile))
    interpreter = interpreter_of(Path(found))
    if interpreter is None:
        _require_program(Path(found))
        warning = (
            f"{found} is not a Python program: Python programs that it starts are patched if their"
            " environment has mlx_patches"
        )
        return Launch((found, *command[1:]), _variables(profile), warning)
    _require_package(interpreter)
    if any(flag in option for option in interpreter[1:] for flag in ISOLATED if is_short(option)):
        warning = (
            f"{found} starts Python with {' '.join(interpreter[1:])}: only this process is"
            " patched, not its children; use mlx-patches enable for those"
        )
        boot = (*interpreter, "-P", "-c", ISOLATED_BOOT, found, *command[1:])
        return Launch(boot, {SWITCH: "1", settings.PROFILE: profile}, warning)
    return Launch((found, *command[1:]), _variables(profile))


def is_short(argument: str) -> bool:
    """Whether an argument is a group of one-letter options, as in ``-um``."""
    return argument[:1] == "-" and argument[1:2] not in ("-", "W", "X")


def is_python(path: Path) -> bool:
    return path.name.startswith(("python", "pypy"))


def interpreter_of(script: Path) -> list[str] | None:
    """The interpreter command that a script names; None if it is not a Python script."""
    first, _, second = _beginning(script).partition(b"\n")
    if not first.startswith(b"#!"):
        return None
    try:
        words = shlex.split(first[2:].decode(errors="replace"))
    except ValueError:  # an unclosed quote
        return None
    if words and Path(words[0]).name in ("sh", "bash") and second.startswith(b"'''exec'"):
        # Installers write this line if the path is too long, contains a space, or may change.
        line = second[len(b"'''exec'") :].decode(errors="replace").strip()
        name = line.removeprefix(BESIDE)
        words = shlex.split(name)[:1]
        if name != line:
            words = [str(script.resolve().parent / words[0])]
    if words and Path(words[0]).name == "env":
        resolved = shutil.which(words[1]) if len(words) > 1 else None
        words = [resolved, *words[2:]] if resolved else []
    return words if words and is_python(Path(words[0])) else None


def _beginning(program: Path) -> bytes:
    """The first bytes of a file; empty if it can be executed but not read."""
    try:
        with open(program, "rb") as file:
            return file.read(2048)
    except OSError:
        return b""


def _require_program(path: Path) -> None:
    # Checked before the warning is printed: a command that cannot start prints one line.
    begins = _beginning(path)
    words = begins[2:].split() if begins.startswith(b"#!") else []
    if words and not os.access(words[0], os.X_OK):
        gone = quote(words[0].decode(errors="replace"))
        raise MlxPatchesError(f"{path}: cannot be started: its interpreter {gone} does not exist")
    if not words and os.access(path, os.R_OK) and b"\0" not in begins:
        raise MlxPatchesError(
            f"{path}: cannot be started: not a program; to run a script, put its shell in front"
        )


def _variables(profile: str) -> dict[str, str]:
    paths = [str(LAUNCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), SWITCH: "1", settings.PROFILE: profile}


def _require_package(interpreter: Sequence[str]) -> None:
    # Unresolved: a venv's python is a link.
    python = str(Path(interpreter[0]).absolute())
    command = [python, *interpreter[1:], "-P", "-c", "import mlx_patches"]
    try:
        done = subprocess.run(command, capture_output=True)
    except OSError as error:
        raise MlxPatchesError(f"{interpreter[0]}: cannot be started ({error.strerror})") from None
    if done.returncode:
        raise MlxPatchesError(
            f"{interpreter[0]}: mlx-patches is not installed in that command's environment"
        )


def execute(launch: Launch, quiet: bool = False) -> None:
    on = f"patches of profile {launch.variables.get(settings.PROFILE, SAFE)} are active"
    if launch.warning or not quiet:
        print(f"mlx-patches: {launch.warning or on}", file=sys.stderr)
    sys.stdout.flush()
    try:
        os.execvpe(launch.command[0], launch.command, {**os.environ, **launch.variables})
    except OSError as error:  # not a program, or its interpreter is missing
        raise MlxPatchesError(
            f"{launch.command[0]}: cannot be started ({error.strerror})"
        ) from None
