"""A condition of the walk: a newcomer's commands, their environment, and the expected results."""

import shlex
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import MappingProxyType

# The kinds of environment, by the model packages and hosts that they have.
EMPTY, MLX_LM, MLX_VLM, OLDER, VLLM_MLX = KINDS = (
    "empty",
    "mlx-lm 0.32.2",
    "mlx-vlm 0.7.10",
    "mlx-vlm 0.4.3 with mlx-lm 0.31.3",
    "vllm-mlx 0.6.0",
)
ANY = KINDS
WITH_MLX = (MLX_LM, MLX_VLM, OLDER, VLLM_MLX)
WITH_MLX_LM = (MLX_LM, OLDER, VLLM_MLX)
WITH_MLX_VLM = (MLX_VLM, OLDER, VLLM_MLX)
_INSTALLED = {
    EMPTY: {},
    MLX_LM: {"mlx-lm": "0.32.2"},
    MLX_VLM: {"mlx-vlm": "0.7.10"},
    OLDER: {"mlx-lm": "0.31.3", "mlx-vlm": "0.4.3"},
    VLLM_MLX: {"mlx-lm": "0.31.3", "mlx-vlm": "0.7.10", "vllm-mlx": "0.6.0"},
}
# The rows of a screen; output for programs, and full listings, have no limit.
SCREEN, NO_END = 20, 10**9

# A file's text or bytes, or a function that creates something else at a path.
Content = str | bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Step:
    """One command of a condition.

    Args:
        argv: the command line; ``mlx-patches`` and ``python`` are those of the environment.
        code: the expected exit codes.
        first: a pattern for the beginning of the first line of standard output.
        also: patterns that standard output must contain.
        never: patterns that standard output must not contain.
        error: a pattern for the one line on standard error: what is wrong, and what to do.
        note: a pattern for a warning on standard error of a successful command.
        rows: the most rows of output, on a terminal of 80 columns.
        seconds: the time limit.
        env: environment variables of this command.
        terminal: standard output is a terminal of 80 columns.
        interrupted: Ctrl-C is sent as soon as the command has printed something.
        imports_mlx: the command may import MLX.
    """

    argv: tuple[str, ...]
    code: Collection[int] = (0,)
    first: str = ""
    also: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    error: str = ""
    note: str = ""
    rows: int = SCREEN
    seconds: float = 20.0
    env: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False
    interrupted: bool = False
    imports_mlx: bool = False


@dataclass(frozen=True)
class Condition:
    """A new user's commands, and their expected results.

    Args:
        name: what is tried.
        steps: the commands, run one after the other in one folder.
        where: the kinds of environment in which it is tested.
        files: the folder's files before the commands, by path; files below ``site`` are importable.
        writes: the paths that the commands must write or change; they may change no others.
        own: run in a new throw-away environment.
        slow: `make test` skips it.
    """

    name: str
    steps: tuple[Step, ...]
    where: Collection[str] = ANY
    files: Mapping[str, Content] = field(default_factory=dict)
    writes: tuple[str, ...] = ()
    own: bool = False
    slow: bool = False

    def __post_init__(self) -> None:
        for one in self.steps:
            # A defect of the tool must not enable the environment of the tests.
            if {"enable", "disable"} & {*one.argv} and "--help" not in one.argv:
                assert self.own, self.name


def step(line: str, *last: str, code: int | Collection[int] = 0, **more: object) -> Step:
    """A command of a journey: a typed line, then arguments that are not quoted."""
    also, never = (_many(more.pop(name, ())) for name in ("also", "never"))
    codes = (code,) if isinstance(code, int) else tuple(code)
    return Step((*shlex.split(line), *last), codes, also=also, never=never, **more)  # type: ignore[arg-type]


def command(
    name: str, line: str = "", *last: str, start: str = "mlx-patches", **more: object
) -> Condition:
    fields = ("where", "files", "writes", "own", "slow")
    whole = {key: more.pop(key) for key in fields if key in more}
    return Condition(name, (step(f"{start} {line}", *last, **more),), **whole)  # type: ignore[arg-type]


def of_folder(
    name: str, config: Content, files: Mapping[str, Content] = MappingProxyType({}), **more: object
) -> Condition:
    """An audit of a model's folder ``m`` with this config.json."""
    return command(name, "audit --model m", files={"m/config.json": config, **files}, **more)


def python(name: str, lines: str, **more: object) -> Condition:
    """A few lines of Python, which print to standard output."""
    return command(name, "-c", lines, start="python", **more)


def shell(name: str, line: str, **more: object) -> Condition:
    """A line of sh; ``mlx-patches`` and ``python`` are those of the environment."""
    return command(name, "-c", line, start="sh", **more)


def refuse(name: str, *line: str, error: str, **more: object) -> Condition:
    """A command line that is refused: exit code 2, and one line with the error and the remedy."""
    return command(name, *line, code=2, error=error, **more)


def journey(name: str, *steps: Step, **more: object) -> Condition:
    """Commands one after the other, in a throw-away environment."""
    return Condition(name, steps, own=True, **more)  # type: ignore[arg-type]


def _many(patterns: object) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)  # type: ignore[arg-type]


def kind_here() -> str:
    """Which of the five environments this is.

    Raises:
        LookupError: it is none of them.
    """
    here = {}
    for name in ("mlx-lm", "mlx-vlm", "vllm-mlx"):
        try:
            here[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    for kind, installed in _INSTALLED.items():
        if here == installed:
            return kind
    raise LookupError(f"{sys.prefix} is none of the walk's environments: {', '.join(KINDS)}")
