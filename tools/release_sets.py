"""The release sets of release_sets.toml, and the environments that uv makes for them."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

import evidence_file  # noqa: E402

from mlx_patches.core import packages  # noqa: E402

# The distributions with their own sets.
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


# Parts of uv's message if an index lacks a package, or a release of it.
_NOT_OFFERED = ("no version of", "was not found", "were not found", "was disabled")
SETS = "tools/release_sets.toml"
_NAME = re.compile(r"[\w-]+ \d[\d.]*((a|b|rc|\.post|\.dev)\d+)*")


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

        On Linux only the extra ``cpu`` of mlx-lm declares which releases of MLX it accepts.
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
            if done.returncode:
                why = f"{one.name}: {flatten(done.stderr)}"
                if "No solution found" in why and not any(sign in why for sign in _NOT_OFFERED):
                    raise Unsolvable(why)
                raise SystemExit(f"{why}; check the network, UV_DEFAULT_INDEX and {SETS}")
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
    found = evidence_file.read(HERE / file)
    if not found:
        raise SystemExit(f"tools/{file}: no release set; restore the file with git")
    return {name: parse(name, raw, file) for name, raw in found.items()}


def parse(name: str, raw: Any, file: str) -> ReleaseSet:
    """The set of a table in ``file``."""
    keys = {"date": datetime.date, "pins": dict, "keeps": list}
    problem = ""
    if not isinstance(raw, dict) or not _NAME.fullmatch(name):
        problem = 'not a table of a release, such as ["mlx-lm 0.31.3"]'
    elif unknown := [key for key in raw if key not in keys]:
        problem = f"unknown key {unknown[0]!r}; choose from: {', '.join(keys)}"
    elif "date" not in raw:
        problem = "date is missing; add one, such as date = 2026-10-20"
    elif odd := [key for key, value in raw.items() if not isinstance(value, keys[key])]:
        problem = f"{odd[0]} is not a {keys[odd[0]].__name__}: {raw[odd[0]]!r}"
    elif odd := [key for key, value in raw.get("pins", {}).items() if not isinstance(value, str)]:
        problem = f"pins.{odd[0]} is not a version in quotes: {raw['pins'][odd[0]]!r}"
    if problem:
        raise SystemExit(f"tools/{file}: {name}: {problem}")
    return ReleaseSet(name, str(raw["date"]), raw.get("pins", {}), tuple(raw.get("keeps", ())))


def find(name: str) -> ReleaseSet:
    if (found := load().get(name)) is None:
        raise SystemExit(f"no release set {name!r}: see {SETS}")
    return found


def hosts() -> dict[str, ReleaseSet]:
    """The sets of hosts that tests serve from. Nothing is measured on them."""
    return load("host_sets.toml")


def versions(python: Path) -> dict[str, str]:
    """The installed versions of the packages in ``MEASURED``.

    Of two copies on the path, the first one's, which is imported.
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


def flatten(errors: str) -> str:
    """What an installer printed, without its warnings, as one line."""
    lines = [line for line in errors.splitlines() if not line.startswith("WARNING")]
    return " ".join(" ".join(lines).split())


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
        command = textwrap.shorten(" ".join(arguments[:4]), 60, placeholder=" ...")
        raise SystemExit(f"{python}: {command}: {why}")
    return done.out
