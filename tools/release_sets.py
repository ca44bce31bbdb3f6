"""The release sets of release_sets.toml, and the environments that uv makes for them."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from mlx_patches.core import packages  # noqa: E402

# The distributions that have sets of their own.
DISTRIBUTIONS = tuple(packages.DISTRIBUTIONS.values())
# The packages whose versions the evidence names.
MEASURED = ("mlx", *DISTRIBUTIONS, "transformers")
SECONDS = 1200
# Large requirements of some releases on Linux that no measured release imports on a CPU.
NEVER = ("torch", "torchvision", "mlx-cuda-12", "mlx-cuda-13")
# Packages that mlx-patches and its tests need; they are newer than the older sets' dates.
_ANY_AGE = (
    "wrapt",
    "click",
    "rich",
    "packaging",
    "importlib-metadata",
    "zipp",
    "lazy-importer",  # importlib-metadata requires it from 10.0 on
    "pyyaml",
    "pytest",
    "pytest-xdist",
    "execnet",
    "httpx",
)
# The distributions of one release of MLX.
_MLX = ("mlx", "mlx-cpu", "mlx-metal")


# Prints the first requirement of a distribution that is not installed, or in another version.
LACKING = """
import importlib.metadata as m, re, sys
from packaging.requirements import Requirement
for text in m.requires(sys.argv[1]) or ():
    one = Requirement(text)
    name = re.sub(r"[-_.]+", "-", one.name.lower())
    if name in sys.argv[2:] or one.marker and not one.marker.evaluate({"extra": ""}):
        continue
    found = [d.version for d in m.distributions(name=name)][:1]
    if not found or not one.specifier.contains(found[0], prereleases=True):
        sys.exit(print(f"{text}, but {name} is {(found or ['missing'])[0]}"))
"""


class Unsolvable(SystemExit):
    """No versions of a set's packages accept each other."""


@dataclass(frozen=True)
class ReleaseSet:
    """One environment: a release, its dependencies as of a date, and extra pins.

    ``keeps`` names packages of ``NEVER`` that this set installs all the same.
    """

    name: str
    date: str
    pins: dict[str, str]
    keeps: tuple[str, ...] = ()

    @property
    def distribution(self) -> str:
        return self.name.split()[0]

    @property
    def version(self) -> str:
        return self.name.split()[1]

    @property
    def slug(self) -> str:
        return self.name.replace(" ", "-")

    def requirements(self) -> list[str]:
        """The requirements to install; on Linux, MLX with its CPU back end."""
        pins = {self.distribution: self.version, **self.pins}
        mlx = "mlx[cpu]" if sys.platform == "linux" else "mlx"
        version = pins.pop("mlx", "")
        first = f"{mlx}=={version}" if version else mlx
        return [first, *(f"{name}=={version}" for name, version in pins.items())]

    def with_mlx(self, version: str) -> ReleaseSet:
        """The same set with another release of MLX, which may be newer than the set's date.

        On Linux only the extra ``cpu`` of mlx-lm says which releases of MLX it accepts.
        """
        extra = "[cpu]" if self.distribution == "mlx-lm" else ""
        pins = {**self.pins, "mlx": version, f"{self.distribution}{extra}": self.version}
        return replace(self, pins=pins)

    def age_limit(self) -> list[str]:
        """Arguments that make uv resolve as of the set's date."""
        limit = ["--exclude-newer", self.date]
        for name in (*_ANY_AGE, *(_MLX if "mlx" in self.pins else ())):
            limit += ["--exclude-newer-package", f"{name}=2999-12-31"]
        return limit


def make(
    one: ReleaseSet, folder: Path, *extra: str, package: Sequence[str] = ("-e", str(ROOT))
) -> Path:
    """Make a set's environment with this package in it, or bring it up to date.

    Args:
        extra: more arguments of ``uv pip install``.
        package: the arguments of ``uv pip install`` that install this package.

    Returns:
        The environment's Python.
    """
    uv = [sys.executable, "-m", "uv"]
    python = folder / "bin" / "python"
    overrides = folder / "overrides.txt"
    steps: list[Sequence[str]] = [
        [*uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)],
        [
            *(*uv, "pip", "install", "--quiet", "--python", str(python)),
            *("--override", str(overrides), *one.age_limit(), *one.requirements()),
            *(*package, *extra),
        ],
    ]
    left_out = [name for name in NEVER if name not in one.keeps]
    text = "".join(f"{name}; python_version < '3'\n" for name in left_out)
    wanted = json.dumps([steps, text, (ROOT / "pyproject.toml").read_text()])
    stamp = folder / "made.json"
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        if python.exists() and stamp.exists() and stamp.read_text() == wanted:
            return python
        overrides.write_text(text)
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True)
            is_offered = "there is no version of" not in done.stderr  # else the index lacks one
            if "No solution found" in done.stderr and is_offered:
                raise Unsolvable(f"{one.name}: {done.stderr.strip()[-500:]}")
            if done.returncode:
                raise SystemExit(f"{one.name}: {done.stderr.strip()[-500:]}")
        stamp.write_text(wanted)
    return python


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold an environment's lock, because sessions that run in parallel may make the same one."""
    with open(folder / "making.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def environment(one: ReleaseSet) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{one.slug}-") as folder:
        python = make(one, Path(folder))
        left_out = [name for name in NEVER if name not in one.keeps]
        if lacking := run(python, "-c", LACKING, one.distribution, *left_out).strip():
            raise SystemExit(f"{one.name}: the environment is broken: {lacking}")
        yield python


def load(file: str = "release_sets.toml") -> dict[str, ReleaseSet]:
    raw = tomllib.loads((HERE / file).read_text())
    return {
        name: ReleaseSet(
            name, str(entry["date"]), entry.get("pins", {}), tuple(entry.get("keeps", ()))
        )
        for name, entry in raw.items()
    }


def find(name: str) -> ReleaseSet:
    """The set of a name."""
    if (found := load().get(name)) is None:
        raise SystemExit(f"no release set {name!r}: see tools/release_sets.toml")
    return found


def hosts() -> dict[str, ReleaseSet]:
    """The sets of hosts that tests serve from. Nothing is measured on them."""
    return load("host_sets.toml")


def versions(python: Path) -> dict[str, str]:
    """The installed versions of the packages in ``MEASURED``.

    Of two copies on the path, that of the one that is imported: the first.
    """
    code = (
        f"import importlib.metadata as m, json; names = {MEASURED};"
        " found = {d.metadata['Name'].lower(): d.version for d in reversed([*m.distributions()])};"
        " print(json.dumps({n: found[n] for n in names if n in found}))"
    )
    return json.loads(run(python, "-c", code))  # type: ignore[no-any-return]


def check_versions(
    one: ReleaseSet, before: Mapping[str, str] | None, now: Mapping[str, str]
) -> None:
    """Check that a set is measured with the packages of the evidence that stays."""
    for name in sorted({*(before or now), *now}):
        pair = [versions.get(name, "missing") for versions in (before or now, now)]
        if pair[0] != pair[1]:
            raise SystemExit(
                f"{one.name}: {name} is {pair[1]} here, its evidence is of {pair[0]}; nothing was"
                " recorded: measure all of the set again"
            )


def run(
    python: Path,
    *arguments: str,
    seconds: int = SECONDS,
    codes: tuple[int, ...] = (0,),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Run Python in an environment, with more variables; returns its standard output."""
    from mlx_patches.lab import children

    done = children.run([str(python), *arguments], seconds, {**os.environ, **variables})
    if done.code not in codes:
        last = (done.errors.strip().splitlines() or [f"ended with {done.code}"])[-1]
        why = f"not done after {seconds} s" if done.code is None else last
        raise SystemExit(f"{python}: {' '.join(arguments[:4])}: {why}")
    return done.out
