"""Runs the lab: a child process for each family, without and with the patches."""

import hashlib
import io
import json
import os
import platform
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO

from ..activation.children import child_environment, module_command
from ..activation.presence import lock
from ..activation.settings import SWITCH
from ..auditing.models import read_folder
from ..core import distributions
from ..core.errors import MlxPatchesError
from ..core.files import quote, writing
from ..core.model_files import CONSENT, read_config
from ..core.model_types import implementations
from ..core.packages import CORE, MODEL_PACKAGES, package_of
from ..core.registry import did_you_mean
from ..evidence.words import FLOAT32, NOT_RUN, RED, RESULTS, current_id
from . import RELEASE, Family, children
from .child import BUILD
from .images.scenario import NAME as IMAGES
from .images.scenario import is_compared
from .reference import NAME as REFERENCE
from .shrink import odd_number

DISTRIBUTIONS = tuple(MODEL_PACKAGES.values())
# The scenario name of the row of a process that crashed or timed out.
PROCESS = "process"
TIMED_OUT, CRASHED = "timed out", "crashed"
# The signals of a release's own crash; others come from outside.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
SECONDS = 120.0
# The start of each line in a row file.
_BEGINS = '{"environment": "'


@dataclass(frozen=True, slots=True)
class Task:
    """One family in one process.

    ``device``: the emulated one, or empty for MLX's. ``reference``: the scenario that compares it
    with transformers, if it is one. ``walks``: the seed and time of its walks, if it has some.
    """

    family: Family
    patched: bool
    scenarios: tuple[str, ...]
    config: Path | None = None
    every_patch: bool = False
    weights: Path | None = None
    dtype: str = FLOAT32
    variant: str = ""
    reference: str = ""
    device: str = ""
    walks: str = ""

    @property
    def folder(self) -> str:
        """The model's folder as in rows; empty for the lab's own config."""
        return f"{self.weights} with its weights" if self.weights else str(self.config or "")

    @property
    def ends(self) -> tuple[str, ...]:
        """The scenario names of rows after which a process has no more rows."""
        return (self.reference,) if self.reference else (BUILD, PROCESS)

    @property
    def setup(self) -> str:
        """What its results depend on besides ``environment()``: one line."""
        found = [setup_here(), *["every patch"] * self.every_patch]
        found += filter(None, (self.device, self.walks))
        if folder := self.weights or self.config:
            files = sorted(one.resolve() for one in folder.rglob("*") if one.is_file())
            stats = [(one, one.stat()) for one in files]
            # A file that is replaced may keep its size and mtime.
            kept = [(str(one), s.st_size, s.st_mtime_ns, s.st_ctime_ns) for one, s in stats]
            found.append(f"folder {_digest(repr(kept).encode())}")
        return ", ".join(found)

    def command(self) -> list[str]:
        command = module_command("mlx_patches.lab.child", str(self.family))
        command += ["--patched"] * self.patched + ["--every-patch"] * self.every_patch
        for name in ("config", "weights", "dtype", "variant", "device", "reference"):
            value = str(getattr(self, name) or "")
            command += [f"--{name}", value] if value not in ("", FLOAT32) else []
        for name in () if self.reference else self.scenarios:
            command += ["--scenario", name]
        return command


@dataclass(frozen=True, slots=True)
class Row:
    """One cell, and where it was measured.

    ``environment`` lists the installed packages, ``config`` is the model's folder. ``device`` is
    the device that MLX computed on, empty if the process ended before it reported one, ``dtype``
    the dtype of the weights, and ``variant`` the variant of the tiny config, if any. ``kernels``
    lists the call sites of the emulated kernels that ran, separated by spaces, and ``setup`` is the
    task's.
    """

    environment: str
    family: str
    patched: bool
    scenario: str
    verdict: str
    detail: str = ""
    figure: float | None = None
    config: str = ""
    device: str = ""
    dtype: str = FLOAT32
    variant: str = ""
    kernels: str = ""
    setup: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def setup_here() -> str:
    """The installed code, and the settings of this process, in one line."""
    from .. import __version__

    found = [f"mlx-patches {__version__}", f"Python {platform.python_version()}"]
    found += [platform.machine(), f"code {_hash_code()}"]
    settings = {name: value for name, value in os.environ.items() if name.startswith("MLX_")}
    settings.pop(SWITCH, None)
    # Not the values, of which one may be a server's key.
    return ", ".join([*found, f"settings {_digest(repr(sorted(settings.items())).encode())}"])


@cache
def _hash_code() -> str:
    """A hash of the code that results depend on: some is changed without a new version."""
    folders = [Path(place) for place in sys.path if os.path.isdir(place)]
    installed = sorted(one.name for folder in folders for one in folder.glob("*.dist-info"))
    parts = [repr(installed).encode()]
    for package in ("mlx_patches", *map(package_of, DISTRIBUTIONS)):
        if file := distributions.source_file(package):
            found = sorted([*file.parent.rglob("*.py"), *file.parent.glob("matrix/*.json")])
            parts += [one.read_bytes() for one in found]
    return _digest(b"".join(parts))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


@cache
def environment() -> str:
    found = (distributions.find(name) for name in CORE)
    return ", ".join(str(one) for one in found if one)


def choose_families(models: Sequence[str], folder: Path | None) -> list[Family]:
    """The families to run: the named ones, or all that are installed."""
    installed = [name for name in DISTRIBUTIONS if distributions.find(name)]
    if not installed:
        raise MlxPatchesError("neither mlx-lm nor mlx-vlm is installed in this environment")
    if folder is not None:
        read = read_folder(folder)
        found = [Family(*pair) for pair in read.implementations().items()]
        if not found:
            raise MlxPatchesError(f"no installed package implements model type {read.model_type!r}")
    else:
        from .families import families

        found = [family for name in installed for family in families(name)]
    if not models:
        return found
    wanted: set[Family] = set()
    for name in models:
        of_type = implementations(name).items()
        named = {
            one
            for one in found
            if name in (one.name, str(one), one.distribution)
            or (one.distribution, one.name) in of_type
        }
        if not named:
            close = did_you_mean(name.rpartition(":")[2], (one.name for one in found))
            raise MlxPatchesError(f"no family {quote(name)!r} in {environment()}{close}")
        wanted |= named
    return [family for family in found if family in wanted]


def list_scenarios(reference: bool) -> tuple[str, ...]:
    """The names of the scenarios; ``reference``: those that compare with transformers."""
    from .named_scenarios import NAMED
    from .release_scenarios import RELEASE_SCENARIOS
    from .scenarios import SCENARIOS

    return (REFERENCE, IMAGES) if reference else (*SCENARIOS, *NAMED, *RELEASE_SCENARIOS)


def tasks(
    models: Sequence[str] = (),
    scenarios: Sequence[str] = (),
    mode: str = "both",
    config: Path | None = None,
    every_patch: bool = False,
    weights: Path | None = None,
    dtype: str = FLOAT32,
    variant: str = "",
    reference: bool = False,
    device: str = "",
) -> list[Task]:
    """The tasks of a run.

    Args:
        models: names of families, with or without their distribution, or of distributions.
            All families by default.
        scenarios: names; by default all batch scenarios.
        mode: ``patched``, ``unpatched`` or ``both``.
        config: a model's folder, whose config is shrunk to replace the lab's.
        weights: a model's folder, which is loaded unchanged.
        every_patch: patched tasks apply every patch that the gate admits, not the model's entry.
        dtype: the dtype of the tiny models' weights; models from ``weights`` keep theirs.
        reference: compare the families with transformers instead of running the scenarios.

    Raises:
        MlxPatchesError: an unknown family or scenario, a folder that cannot be used, no family
            that has the variant, or a device that cannot be emulated here.
    """
    from .metal_emulated.library import missing
    from .release_scenarios import RELEASE_SCENARIOS
    from .scenarios import SCENARIOS
    from .variants import VARIANTS, has_variant

    if device and (reason := missing()):
        raise MlxPatchesError(reason)
    every = list_scenarios(reference)
    scenarios = tuple(map(current_id, scenarios))
    for name in scenarios:
        if name not in every:
            raise MlxPatchesError(f"no scenario {name!r}; choose from: {', '.join(every)}")
    names = tuple(name for name in every if name in (scenarios or SCENARIOS))
    releases = tuple(name for name in names if name in RELEASE_SCENARIOS)
    names = names[: len(names) - len(releases)]
    if releases and (config or weights or variant or device or dtype != FLOAT32):
        raise MlxPatchesError(
            f"{releases[0]} tests a release with its own tiny models: omit --config, --weights,"
            " --dtype, --variant and --device"
        )
    patched = {"patched": [True], "unpatched": [False], "both": [False, True]}[mode]
    found = choose_families(models, config or weights)
    if variant:
        found = [family for family in found if has_variant(family, variant)]
        if not found:
            fields = " or ".join(VARIANTS[variant].fields)
            raise MlxPatchesError(f"no {variant} variant: no family here has {fields}")
    if config is not None and (code := read_config(config).get("model_file")):
        raise MlxPatchesError(
            f"{config / 'config.json'}: model_file is {quote(str(code))}, code that the lab runs"
            f" only with {CONSENT}=1, from a folder with weights (--weights)"
        )
    if reference:
        return [
            Task(f, p, (name,), every_patch=p and every_patch, reference=name)
            for f in found
            for p in patched
            for name in scenarios or every
            if name == REFERENCE or is_compared(f)
        ]
    of_families = [
        Task(f, p, names, config, p and every_patch, weights, dtype, variant, "", device)
        for f in found
        for p in patched
        if names
    ]
    return of_families + [
        Task(Family(distribution, RELEASE), p, releases, every_patch=p and every_patch)
        for distribution in dict.fromkeys(family.distribution for family in found)
        for p in patched
        if releases
    ]


def measure(task: Task, seconds: float = SECONDS) -> list[Row]:
    """Run one task and return its rows; a crash or timeout adds a red row with the place.

    The row is not red, but ``NOT_RUN``, if the process was killed or failed outside a scenario.
    """
    setup = task.setup  # the folder may change meanwhile
    code, out, errors = children.run(task.command(), seconds, exact_environment())
    late = f"{TIMED_OUT} after {seconds:g} s"
    end = late if code is None else describe_end(code, errors)
    cells = [cell for cell in map(_cell, out.splitlines()) if cell]
    names = [str(cell["scenario"]) for cell in cells]
    missing = [name for name in task.scenarios if name not in names]
    if missing and BUILD not in names:
        detail = f"{end or 'ended early'}, in {missing[0]}" + ("" if names else " or before")
        device = cells[-1]["device"] if cells else ""
        end_cell = {"scenario": task.ends[-1], "verdict": judge_end(code), "detail": detail}
        cells.append({**end_cell, "device": device})
    place = (environment(), str(task.family), task.patched)
    own = {"config": task.folder, "variant": task.variant, "setup": setup}
    return [Row(*place, **{"dtype": task.dtype, **cell, **own}) for cell in cells]


def exact_environment() -> dict[str, str]:
    """The environment of a lab process: only the lab's patches, exact products.

    GPUs that support TF32 multiply float32 with ten bits, and results for other batch shapes then
    differ by more than the lab's tolerance.
    """
    return child_environment() | {"MLX_ENABLE_TF32": "0"}


@cache
def device(python: str = sys.executable) -> str:
    """The device of an environment, found by a child that may import MLX; empty if none."""
    code = "from mlx_patches.lab.child import device; print(device())"
    return children.run([python, "-P", "-c", code], SECONDS).out.strip()


def run(
    tasks: Iterable[Task],
    jobs: int = 1,
    seconds: float = SECONDS,
    out: Path | None = None,
    report: Callable[[Task, list[Row]], None] = lambda task, rows: None,
    one: Callable[[Task], list[Row]] | None = None,
) -> list[Row]:
    """Run the tasks and return every row, starting with those of ``out`` that cover a task.

    Args:
        jobs: the number of parallel processes.
        seconds: the time limit of each process.
        out: a file of JSON lines; tasks that it covers are skipped, new rows are appended.
        report: called after each task.
        one: runs a task, ``measure`` by default.
    """
    tasks = list(tasks)
    known = read_rows(out) if out else []
    rows, left = [], []
    for task in tasks:
        setup = task.setup if known else ""  # reads the model's folder: once for all rows
        held = [row for row in known if _answers(row, task, setup) and _is_final(row, seconds)]
        names = {row.scenario for row in held}
        if names >= set(task.scenarios) or names & {*task.ends}:
            rows += held
            report(task, held)
        else:
            left.append(task)
    file = _append(out) if out else None
    pool, futures = ThreadPoolExecutor(max(1, jobs)), dict[Future[list[Row]], Task]()
    try:
        one = one or partial(measure, seconds=seconds)
        for task in left:
            futures[pool.submit(one, task)] = task
        for future in as_completed(futures):
            fresh = future.result()
            if file and out:
                with writing(out):
                    file.write("".join(json.dumps(row.as_dict()) + "\n" for row in fresh))
                    file.flush()
            rows += fresh
            report(futures[future], fresh)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        while any(future.running() for future in futures):  # of an interrupted run
            children.end_all()
            time.sleep(0.05)  # a thread may be about to start a process
        if file and out:
            with writing(out):
                file.close()
    return rows


def by_family(rows: Iterable[Row]) -> dict[tuple[str, bool], str]:
    """(family, patched) to the verdict of the family's worst cell."""
    worst: dict[tuple[str, bool], str] = {}
    for row in rows:
        key = (row.family, row.patched)
        worst[key] = min(worst.get(key, row.verdict), row.verdict, key=RESULTS.index)
    return dict(sorted(worst.items()))


def summary(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    """The number of families by verdict, ``without`` and ``with`` the patches if they ran."""
    counts: dict[str, Counter[str]] = {}
    for (_, patched), verdict in by_family(rows).items():
        counts.setdefault("with" if patched else "without", Counter())[verdict] += 1
    return {
        mode: {verdict: counts[mode][verdict] for verdict in RESULTS}
        for mode in ("without", "with")
        if mode in counts
    }


def exit_code(rows: Iterable[Row]) -> int:
    """1 if a cell is red, else 0; if both modes ran, only cells with the patches count."""
    rows = list(rows)
    patched = any(row.patched for row in rows)
    return int(any(row.verdict == RED for row in rows if row.patched == patched))


def why_unbuilt(folder: Path, rows: Sequence[Row]) -> str:
    """Why no model could be built from a folder; empty if one was built.

    It starts with the faulty field of the config if that is known; then a crash counts as well.
    """
    field = odd_number(read_config(folder))
    unbuilt = (BUILD, PROCESS) if field else (BUILD,)
    if not rows or any(row.scenario not in unbuilt for row in rows):
        return ""
    why = f"{field} ({rows[0].detail})" if field else rows[0].detail
    return f"{folder / 'config.json'}: {why}"


def judge_end(code: int | None) -> str:
    """The verdict if a process ended early, with this exit code or, if None, too late."""
    return RED if code is None or -code in CRASHES or not code else NOT_RUN


def describe_end(code: int, errors: str) -> str:
    """How a process failed; empty if its exit code is 0."""
    if code < 0:
        return f"{CRASHED}: signal {-code}"
    last = (errors.strip().splitlines() or [""])[-1]
    return f"exit code {code}: {last}" if code else ""


def _cell(line: str) -> dict[str, Any] | None:
    """The cell in a line of a child's output; None if the line is truncated or not a cell."""
    try:
        cell = json.loads(line)
        found = {name: cell[name] for name in ("scenario", "verdict", "detail", "figure")}
        places = {name: cell[name] for name in ("dtype", "kernels") if name in cell}
        return {**found, "device": cell.get("device", ""), **places}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _answers(row: Row, task: Task, setup: str) -> bool:
    return bool(
        (row.family, row.patched) == (str(task.family), task.patched)
        and (row.config, row.variant, row.setup) == (task.folder, task.variant, setup)
        and row.environment == environment()
        and (task.weights or row.dtype == task.dtype)
        and (not row.device or row.device == (task.device or device()))
        and row.scenario.partition(":")[0] in (*task.scenarios, *task.ends)
    )


def _is_final(row: Row, seconds: float) -> bool:
    """Whether the same task would not give another row with this time limit."""
    late = row.detail.startswith(TIMED_OUT)
    within = row.detail.startswith(f"{TIMED_OUT} after {seconds:g} s")
    return row.verdict != NOT_RUN and (not late or within)


def check_ran(rows: Iterable[Row]) -> None:
    for row in rows:
        if row.verdict == NOT_RUN:
            raise MlxPatchesError(f"{row.family}, {row.scenario} did not run: {row.detail}")


def read_rows(path: Path) -> list[Row]:
    """Read the rows that the lab wrote to a file; none if it does not exist."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise MlxPatchesError(f"{path}: cannot be read: {error}") from None
    return list(_rows(path, text))


def _rows(path: Path, text: str) -> Iterator[Row]:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        row = None
        if number == len(lines):
            # An interruption may have truncated the last line. If it does not start like a row,
            # the file is not the lab's.
            known = line.startswith(_BEGINS) or _BEGINS.startswith(line)
        else:
            try:
                row = Row(**json.loads(line))
                row = replace(row, scenario=current_id(row.scenario))
                known = row.verdict in RESULTS
            except (ValueError, TypeError):
                known = False
        if not known:
            raise MlxPatchesError(
                f"{path}: line {number}: not a row of the lab; give --out another file"
            )
        if row:
            yield row


def _append(path: Path) -> TextIO:
    with writing(path):
        file = open(path, "a+b")  # noqa: SIM115
        if not lock(file.fileno()):
            raise MlxPatchesError(f"{path}: another lab writes to it; give --out another file")
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)  # drops a truncated line
        return io.TextIOWrapper(file, encoding="utf-8")
