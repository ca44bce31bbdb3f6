"""Runs a condition, and lists the problems of its results."""

import hashlib
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import sysconfig
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path

from . import things
from .condition import NO_END, Condition, Step

ROOT = Path(__file__).parents[2]
COLUMNS = 80
# The most rows of an error: a path may be long, but typed text is cut.
ERROR_ROWS = 8
# The environment variables that Python itself needs; a command gets no other inherited ones.
KEPT = ("SYSTEMROOT", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# Writes at exit which MLX packages the process has imported.
WATCH = """
import atexit, os, signal, sys
# A job in the background of a shell inherits that interruptions are ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
def _tell(file=os.environ["WALK_IMPORTS"], process=os.getpid()):
    if os.getpid() == process:
        tops = {name.partition(".")[0] for name in sys.modules}
        found = {"mlx", "mlx_lm", "mlx_vlm", "vllm_mlx"} & tops
        with open(file, "a") as log:
            log.write(" ".join(sorted(found)) + "\\n")
atexit.register(_tell)
"""
MAIN = """
sys.argv[0] = "mlx-patches"
from mlx_patches.cli import main
main()
"""
USAGE = re.compile(r"(Usage: .*\n(Try '.*' for help\.\n\n)?)?Error: .*\n")
ONE_LINE = re.compile(r"\n?mlx-patches: .*\n")


@dataclass(frozen=True)
class Came:
    code: int
    out: str
    err: str


class Walk:
    """The folder and the environment in which a condition runs."""

    def __init__(self, folder: Path, condition: Condition):
        self.condition = condition
        self.work, self.home, self.runtime = (folder / n for n in ("work", "home", "runtime"))
        for path in (self.work, self.home, self.runtime):
            path.mkdir()
        self.imports = folder / "imports"
        self.bin = _own_environment(folder / "env") if condition.own else Path(sys.prefix) / "bin"
        self.python = str(self.bin / "python")
        things.make(self.work, dict(condition.files))

    def problems(self) -> Iterator[str]:
        """The problems, one sentence each."""
        before = _read_folder(self.work)
        for number, step in enumerate(self.condition.steps, 1):
            try:
                came = self._run(step)
            except subprocess.TimeoutExpired:
                yield f"step {number}: did not end within {step.seconds:g} s"
                return
            found = [*_wrong(step, came), *self._check_imports(step)]
            yield from (f"step {number}, {' '.join(step.argv)[:100]}: {one}" for one in found)
            if found:
                out, err = came.out[:3000], came.err[:3000]
                yield f"exit code {came.code}\n--- out\n{out}\n--- err\n{err}"
                return
        yield from self._check_written(before)

    def _run(self, step: Step) -> Came:
        variables = self._variables(step)
        options = {"cwd": self.work, "env": variables, "stdin": subprocess.DEVNULL}
        argv = self._command(step)
        if step.terminal:
            return _in_terminal(argv, step.seconds, **options)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        with subprocess.Popen(argv, **options, **pipes) as process:
            began = b""
            if step.interrupted:
                began = process.stdout.read(1)
                process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=step.seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise
        return Came(process.returncode, _text(began + out), _text(err))

    def _command(self, step: Step) -> list[str]:
        """The command line; Python code reports at exit what it has imported."""
        # -P: the folder is not importable, as for the installed command.
        start = [self.python, "-P", "-c"]
        match step.argv:
            case ("mlx-patches", *arguments):
                return [*start, WATCH + MAIN, *arguments]
            case ("python", "-c", code):
                return [*start, WATCH + code]
            case ("python", *arguments):
                return [self.python, *arguments]
        return list(step.argv)

    def _variables(self, step: Step) -> dict[str, str]:
        site = self.work / "site"
        return {
            **{name: os.environ[name] for name in KEPT if name in os.environ},
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime),
            "TMPDIR": str(self.runtime),
            "WALK_IMPORTS": str(self.imports),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            **({"PYTHONPATH": str(site)} if site.exists() else {}),
            **{name: value.format(work=self.work) for name, value in step.env.items()},
        }

    def _check_imports(self, step: Step) -> Iterator[str]:
        found = self.imports.read_text().split() if self.imports.exists() else []
        self.imports.unlink(missing_ok=True)
        if found and not step.imports_mlx:
            yield f"imported {', '.join(found)}"

    def _check_written(self, before: dict[str, str]) -> Iterator[str]:
        after = _read_folder(self.work)
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        if strange := sorted(changed - set(self.condition.writes)):
            yield f"wrote, changed or removed {', '.join(strange)}"
        if missing := sorted(set(self.condition.writes) - changed):
            yield f"did not write {', '.join(missing)}"
        left = [*_read_folder(self.home), *_read_folder(self.runtime)]
        # Allowed: the files that `ps` reads, and the kernels that MLX compiles for a CPU.
        left = [name for name in left if not re.match(r"mlx_patches-|mlx(/|$)", name)]
        if left:
            yield f"left {', '.join(left)} behind"
        if _is_enabled(sysconfig.get_path("purelib")):
            yield "enabled the environment of the tests"


def _wrong(step: Step, came: Came) -> Iterator[str]:
    """The problems of a command's exit code and output."""
    if "Traceback" in came.out + came.err:
        yield "a traceback"
    if came.code not in step.code:
        yield f"exit code {came.code}, not {' or '.join(map(str, step.code))}"
    lines = came.out.splitlines()
    if step.first and not (lines and re.match(step.first, lines[0])):
        yield f"the first line does not begin with {step.first!r}"
    yield from (f"no {one!r} in its output" for one in step.also if not _has(one, came.out))
    yield from (f"{one!r} in its output" for one in step.never if _has(one, came.out))
    if (took := _rows(came.out)) > step.rows:
        yield f"{took} rows, more than {step.rows}"
    yield from _wrong_error(step, came)


def _wrong_error(step: Step, came: Came) -> Iterator[str]:
    """The problems of standard error, which has to be empty, a warning, or one line of error."""
    if step.note:
        if not _has(step.note, came.err):
            yield f"no {step.note!r} in what it warns of"
        if _rows(came.err) > step.rows:
            yield f"{_rows(came.err)} rows of warnings"
    elif step.error:
        if not (ONE_LINE.fullmatch(came.err) or USAGE.fullmatch(came.err)):
            yield "the error is not one line"
        if not _has(step.error, came.err):
            yield f"no {step.error!r} in the error"
        if _rows(came.err) > ERROR_ROWS:
            yield f"an error of {_rows(came.err)} rows"
    elif came.err and step.rows != NO_END:
        yield "something on standard error"


def _has(pattern: str, text: str) -> bool:
    """Whether a text contains a pattern, across line breaks too."""
    return re.search(pattern, " ".join(text.split())) is not None


def _rows(text: str) -> int:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return sum(-(-max(len(line), 1) // COLUMNS) for line in plain.splitlines())


def _text(content: bytes) -> str:
    return content.decode(errors="replace").replace("\r\n", "\n")


def _in_terminal(argv: list[str], seconds: float, **options: object) -> Came:
    """Run with standard output on a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {"TERM": "xterm", **options.pop("env")}  # type: ignore[dict-item]
    streams = {"stdout": theirs, "stderr": subprocess.PIPE}
    with subprocess.Popen(argv, env=environment, **streams, **options) as process:
        os.close(theirs)
        out = b""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:  # EIO: the process has closed the other end
                break
            if not got:
                break
            out += got
        _, err = process.communicate(timeout=seconds)
    os.close(ours)
    return Came(process.returncode, _text(out), _text(err))


def _read_folder(folder: Path) -> dict[str, str]:
    """Every path below a folder, with its content, kind or mode."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            kind = f"link to {os.readlink(path)}"
        elif path.is_file():
            try:
                kind = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                kind = "unreadable"
        else:  # only a folder's mode counts, so that writing into it does not change it
            kind = str(path.stat().st_mode)
        found[str(path.relative_to(folder))] = kind
    return found


def _is_enabled(site: str) -> bool:
    return any(Path(site).glob("mlx_patches_boot.*"))


def _own_environment(folder: Path) -> Path:
    """Make a throw-away environment on top of the tests' own; returns its folder of commands."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / f"python{version}" / "site-packages"
    site.mkdir(parents=True)
    (folder / "bin").mkdir()
    # The same files as venv makes, a hundred times as fast.
    base = Path(sys._base_executable)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\n")
    (folder / "bin" / "python").symlink_to(base)
    # Python does not run the .pth files of a path that a .pth file adds, so activation files of the
    # tests' environment have no effect here.
    (site / "beside.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    command = folder / "bin" / "mlx-patches"
    command.write_text(f"#!{folder}/bin/python\nfrom mlx_patches.cli import main\nmain()\n")
    command.chmod(0o755)
    return folder / "bin"
